# snapkv.h: `make` lists the targets. Everything that is built goes under build/.

CC  ?= cc
CXX ?= c++
B   := build
H   := include/snapkv.h

# The flags of the examples and tests. NATIVE lets the header choose the fastest path of this machine.
WARN   := -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wundef -pedantic
NATIVE := $(shell $(CC) -march=native -E -x c /dev/null >/dev/null 2>&1 && echo -march=native)
CFLAGS ?= -O2 -g
BASE   := -std=c99 $(WARN) -Iinclude

.DEFAULT_GOAL := help
.PHONY: help demo pictures llama examples check vectors bench install uninstall clean
.DELETE_ON_ERROR:
.SECONDARY:

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- examples ------------------------------------------------------------------------------

EXAMPLES := $(patsubst examples/%.c,$(B)/%,$(wildcard examples/*.c))

examples: $(EXAMPLES) ## build every example into build/

$(B)/%: examples/%.c $(wildcard examples/*.h) $(H) | $(B)
	$(CC) $(BASE) $(CFLAGS) -O3 $(NATIVE) -Iexamples -o $@ $< -lm

demo: $(B)/recall $(B)/keepmap ## the main job on the built-in model: recall against capacity, table and plots
	$(B)/recall
	$(B)/keepmap

pictures: demo ## write docs/recall.svg and docs/keepmap.svg anew
	cp $(B)/recall.svg $(B)/keepmap.svg docs/

$(B)/threads: BASE += -pthread

llama: $(B)/llama ## the built-in model decodes from a compressed cache; build/llama --help for your own
	$(B)/llama

# ---- tests ---------------------------------------------------------------------------------

# Three builds of every unit test: what plain flags give (no fused multiply-add on x86), the scalar
# path with fused multiply-add, and the fastest path of this machine.
UNIT        := $(patsubst tests/unit/test_%.c,%,$(wildcard tests/unit/test_*.c))
BUILDS      := plain scalar native
FLAGS_plain  := -DSNAPKV_ISA=SNAPKV_ISA_SCALAR
FLAGS_scalar := $(NATIVE) -DSNAPKV_ISA=SNAPKV_ISA_SCALAR -DSNAPKV_SCALAR_FMA=1
FLAGS_native := $(NATIVE)
SUPPORT      := $(patsubst tests/support/%.c,%.o,$(wildcard tests/support/*.c))
SUPPORT_H    := $(wildcard tests/support/*.h examples/*.h)
UNIT_BINS    := $(foreach b,$(BUILDS),$(UNIT:%=$(B)/unit/$b/%))
CHECKS       := $(foreach b,$(BUILDS),$(foreach u,$(UNIT),unit/$b/$u=$(B)/unit/$b/$u))
CHECKS       += compile/symbols=tests/compile/symbols.sh

# The support calls the library too, so that it is built with each build's flags.
define unit_rule
$(B)/support/$(1)/%.o: tests/support/%.c $(SUPPORT_H) $(H) | $(B)/cmocka.ok
	@mkdir -p $$(@D)
	$(CC) $(BASE) $(CFLAGS) $(FLAGS_$(1)) -c -o $$@ $$<

$(B)/unit/$(1)/%: tests/unit/test_%.c $(SUPPORT:%=$(B)/support/$(1)/%) $(SUPPORT_H) $(H)
	@mkdir -p $$(@D)
	$(CC) $(BASE) $(CFLAGS) $(FLAGS_$(1)) -DBUILD_NAME='"$(1)"' -Itests/support -o $$@ $$< $(SUPPORT:%=$(B)/support/$(1)/%) -lcmocka -lm
endef
$(foreach b,$(BUILDS),$(eval $(call unit_rule,$b)))

check: $(UNIT_BINS) $(B)/recall $(B)/accuracy $(B)/make_vectors $(B)/quickstart $(B)/worked_example ## install cmocka if it is missing, then run the tests but the long ones
	@tests/run.sh $(CHECKS) 'recall=$(B)/recall --check'

check-all: ## check, then the long ones: fuzzing, sanitizers, scale; 43 minutes
	@status=0; $(MAKE) --no-print-directory check || status=1; \
	tests/run.sh $(call fuzz_checks,$(FUZZ_SECONDS)) >$(B)/fuzz.txt & \
	tests/run.sh $(LONG_CHECKS) || status=1; wait $$! || status=1; cat $(B)/fuzz.txt; exit $$status

$(B)/cmocka.ok: | $(B)
	@CC='$(CC)' sh tests/need_cmocka.sh
	@touch $@

CHECKS += examples/llama=tests/examples/llama.sh examples/threads=$(B)/threads examples/dispatch=tests/examples/dispatch.sh
CHECKS += examples/keepmap=tests/examples/keepmap.sh
check: $(B)/llama $(B)/threads $(B)/dispatch $(B)/keepmap

# ---- the numeric contract ------------------------------------------------------------------

CHECKS += parity=tests/parity/parity.sh accuracy=$(B)/accuracy vectors=tests/vectors/drift.sh

$(B)/make_vectors: tests/vectors/make_vectors.c $(SUPPORT:%=$(B)/support/scalar/%) $(H)
	$(CC) $(BASE) $(CFLAGS) $(FLAGS_scalar) -Itests/support -o $@ $< $(SUPPORT:%=$(B)/support/scalar/%) \
	    -lcmocka -lm

vectors: $(B)/make_vectors ## write tests/vectors/vectors.txt anew from the scalar path
	$(B)/make_vectors >$(B)/vectors.txt
	cp $(B)/vectors.txt tests/vectors/vectors.txt

$(B)/accuracy: tests/parity/accuracy.c $(H) | $(B)
	$(CC) $(BASE) $(CFLAGS) $(NATIVE) -o $@ $< -lm

# ---- fuzzing -------------------------------------------------------------------------------

# libFuzzer is clang's. The targets and the library are instrumented; what judges the answers is not.
CLANG         ?= clang
FUZZ_SECONDS  ?= 600
FUZZ_FLAGS    := -std=c99 $(WARN) -g -Iinclude -Itests/support -Itests/fuzz
FUZZ_SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_H        := $(wildcard tests/fuzz/*.h) $(SUPPORT_H) $(H)
FUZZ_PLAIN    := judge $(patsubst tests/support/%.c,%,$(wildcard tests/support/*.c))
FUZZ_native   := $(NATIVE)
FUZZ_scalar   := $(NATIVE) -DSNAPKV_ISA=SNAPKV_ISA_SCALAR -DSNAPKV_SCALAR_FMA=1
FUZZ_RUNS     := layer/native layer/scalar cursor/native
fuzz_checks    = $(foreach r,$(FUZZ_RUNS),'fuzz/$r=tests/fuzz/fuzz.sh $(subst /, ,$r) $(1)')

define fuzz_rules
$(FUZZ_PLAIN:%=$(B)/fuzz/$(1)/%.o): $(B)/fuzz/$(1)/%.o: $(FUZZ_H) | $(B)/cmocka.ok
	@mkdir -p $$(@D)
	$(CLANG) $(FUZZ_FLAGS) $(FUZZ_$(1)) -O2 -c -o $$@ $$(firstword $$(wildcard tests/fuzz/$$*.c tests/support/$$*.c))

$(B)/fuzz/$(1)/fuzz_%: tests/fuzz/fuzz_%.c tests/fuzz/blocks.c $(FUZZ_H) $(FUZZ_PLAIN:%=$(B)/fuzz/$(1)/%.o)
	$(CLANG) $(FUZZ_FLAGS) $(FUZZ_$(1)) -O1 -fsanitize=fuzzer $(FUZZ_SANITIZE) -o $$@ $$< \
	    $$(if $$(filter layer,$$*),tests/fuzz/blocks.c) $(FUZZ_PLAIN:%=$(B)/fuzz/$(1)/%.o) -lcmocka -lm
endef
$(foreach i,native scalar,$(eval $(call fuzz_rules,$i)))

export CLANG
CHECKS += $(call fuzz_checks,20)

.PHONY: fuzz
fuzz: ## hostile inputs against the reference, FUZZ_SECONDS=600 a target
	@tests/run.sh $(call fuzz_checks,$(FUZZ_SECONDS))

# ---- sanitizers ----------------------------------------------------------------------------

# The unit tests again, each build with what watches it. Instrumented, the scalar path takes gcc 13 s
# a test and clang 20 s to optimise: gcc doesn't, and clang has it in fuzz/layer/scalar instead. With
# -std=c99 gcc contracts no a * b + c of the tests and examples; clang is told not to.
GCC             ?= gcc
SANITIZE        := gcc-native gcc-scalar clang-native memory-native memory-scalar
MEMCHECK        := memcheck-scalar memcheck-avx2
SANITIZE_native := -O1 $(NATIVE)
SANITIZE_scalar := -DSNAPKV_ISA=SNAPKV_ISA_SCALAR
SANITIZE_avx2   := -DSNAPKV_ISA=SNAPKV_ISA_AVX2 -mavx2 -mfma -mf16c
SANITIZE_gcc    := $(GCC) $(FUZZ_SANITIZE)
SANITIZE_clang  := $(CLANG) -ffp-contract=off $(FUZZ_SANITIZE)
SANITIZE_memory := $(CLANG) -O1 -ffp-contract=off -fsanitize=memory -fsanitize-memory-track-origins \
    -fno-sanitize-recover=all
SANITIZE_memcheck := $(GCC) -O2 -DTESTS_MEMCHECK
# valgrind takes some 30 times as long and knows no AVX-512: not what only does more of the same, nor
# what looks at its own stack or at 16 GiB of addresses.
MEMCHECK_UNIT   := $(filter-out random stack scale llama cases corners workspace,$(UNIT))
sanitize_checks := $(foreach s,$(SANITIZE),'sanitize/$s=tests/unit/sanitized.sh $s $(UNIT)')
memcheck_checks := $(foreach s,$(MEMCHECK),'memcheck/$s=tests/unit/sanitized.sh $s $(MEMCHECK_UNIT)')

define sanitize_rules
$(B)/sanitize/$(1)/support/%.o: tests/support/%.c $(SUPPORT_H) $(H) | $(B)/cmocka.ok
	@mkdir -p $$(@D)
	$(2) $(BASE) -g $(3) -c -o $$@ $$<

$(B)/sanitize/$(1)/%: tests/unit/test_%.c $(SUPPORT:%=$(B)/sanitize/$(1)/support/%) $(SUPPORT_H) $(H)
	$(2) $(BASE) -g $(3) -DBUILD_NAME='"../sanitize/$(1)"' -Itests/support -o $$@ $$< \
	    $(SUPPORT:%=$(B)/sanitize/$(1)/support/%) -lcmocka -lm
endef
$(foreach s,$(SANITIZE) $(MEMCHECK),$(eval $(call sanitize_rules,$s,$(SANITIZE_$(word 1,$(subst -, ,$s))),$(SANITIZE_$(word 2,$(subst -, ,$s))))))

export GCC
LONG_CHECKS += $(sanitize_checks) $(memcheck_checks)

.PHONY: sanitize memcheck
sanitize: ## the unit tests under ASan, UBSan (gcc, clang) and MSan
	@tests/run.sh $(sanitize_checks)

memcheck: ## the unit tests under valgrind, scalar and AVX2
	@tests/run.sh $(memcheck_checks)

# ---- scale ---------------------------------------------------------------------------------

# With the overflow checks of UBSan too; clang's also see a number that changes when it is narrowed.
SCALE              := longest long_prompt
SCALE_native       := $(CC) -O3 $(NATIVE)
SCALE_ubsan        := $(CLANG) -O2 $(NATIVE) -fsanitize=undefined,implicit-conversion -fno-sanitize-recover=all
scale_checks       := $(foreach b,native ubsan,$(foreach s,$(SCALE),'scale/$b/$s=tests/scale/scale.sh $b $s'))

define scale_rules
$(B)/scale/$(1)/%: tests/scale/%.c $(wildcard tests/support/*.c) $(SUPPORT_H) $(H) | $(B)/cmocka.ok
	@mkdir -p $$(@D)
	$(SCALE_$(1)) $(BASE) -g -Itests/support -o $$@ $$< $(wildcard tests/support/*.c) -lcmocka -lm
endef
$(foreach b,native ubsan,$(eval $(call scale_rules,$b)))

LONG_CHECKS += $(scale_checks)

.PHONY: scale
scale: ## prompts of 2^20 tokens, arrays of INT32_MAX entries
	@tests/run.sh $(scale_checks)

# ---- threads -------------------------------------------------------------------------------

tsan_checks := $(foreach c,gcc clang,$(foreach p,parity examples,'tsan/$c/$p=tests/parity/tsan.sh $c $p'))

CHECKS += $(tsan_checks)

.PHONY: tsan
tsan: ## many sets on several threads under ThreadSanitizer, and the bits of one
	@tests/run.sh $(tsan_checks)

# ---- documents and the installed copy ------------------------------------------------------

# The scripts compile with the same compiler and warnings.
export CC BASE B
CHECKS += docs/quickstart=tests/docs/quickstart.sh docs/snippets=tests/docs/snippets.sh installed=tests/install/installed.sh

# ---- builds, bare metal, coverage, mutants, lint -------------------------------------------

build_checks = $(foreach p,$(1),'builds/$p=tests/compile/builds.sh $p')
CHECKS      += $(call build_checks,languages guests choices levels) baremetal=tests/baremetal/baremetal.sh
LONG_CHECKS += $(call build_checks,processors windows) \
    coverage=tests/unit/coverage.sh mutants=tests/unit/mutants.sh lint=tests/lint/lint.sh

.PHONY: check-builds baremetal coverage mutants lint tools
check-builds: ## every language, compiler and flag; other processors and Windows, emulated
	@tests/run.sh $(call build_checks,languages guests choices levels processors windows)

baremetal: ## Cortex-M4F and M7 without a system, emulated: bits, code size, stack, workspace
	@tests/baremetal/baremetal.sh

coverage: ## lines and branches of the header that the unit tests run
	@tests/unit/coverage.sh

mutants: ## some 80 changes to the header, one at a time: does a unit test notice each?
	@tests/unit/mutants.sh

lint: ## clang-tidy, cppcheck and gcc -fanalyzer
	@tests/lint/lint.sh

TOOLS := clang libclang-rt-14-dev clang-tidy cppcheck gcovr libcmocka-dev libsimde-dev pkg-config gcc-aarch64-linux-gnu \
    gcc-arm-linux-gnueabihf gcc-i686-linux-gnu gcc-s390x-linux-gnu gcc-powerpc64-linux-gnu \
    gcc-riscv64-linux-gnu gcc-mingw-w64-x86-64 gcc-arm-none-eabi libnewlib-arm-none-eabi \
    libc6-dev-arm64-cross libc6-dev-armhf-cross libc6-dev-i386-cross libc6-dev-s390x-cross \
    libc6-dev-ppc64-cross libc6-dev-riscv64-cross qemu-user qemu-system-arm valgrind wine wine64

tools: ## install what the checks can use, on Debian as root
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(TOOLS)

# ---- install -------------------------------------------------------------------------------

PREFIX  ?= /usr/local
DESTDIR ?=
INCLUDE := $(DESTDIR)$(PREFIX)/include
PKGCONF := $(DESTDIR)$(PREFIX)/share/pkgconfig
VERSION  = $(shell awk '/^.define SNAPKV_VERSION_/ { v = v s $$3; s = "." } END { print v }' $(H))

install: ## copy the header and snapkv.pc below PREFIX (/usr/local), staged in DESTDIR
	install -d '$(INCLUDE)' '$(PKGCONF)'
	install -m 644 $(H) '$(INCLUDE)/snapkv.h'
	printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' '' 'Name: snapkv' \
	    'Description: SnapKV key/value cache selection in one C header' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}' 'Libs: -lm' >'$(PKGCONF)/snapkv.pc'
	chmod 644 '$(PKGCONF)/snapkv.pc'

uninstall: ## remove what install put there
	rm -f '$(INCLUDE)/snapkv.h' '$(PKGCONF)/snapkv.pc'

# ---- benchmark -----------------------------------------------------------------------------

# Every path that the target has, by $(CC) and by the other compiler where it is installed, in one
# program. OpenBLAS, PyTorch and a C++ compiler are peers: without them their rows say SKIP.
BENCH       :=
BENCH_KIND  := $(if $(findstring clang,$(shell $(CC) --version 2>/dev/null)),clang,gcc)
BENCH_OTHER := $(notdir $(shell command -v $(if $(filter gcc,$(BENCH_KIND)),clang,gcc)))
BENCH_CPU   := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
BENCH_ISAS  := scalar $(if $(filter x86_64,$(BENCH_CPU)),avx2 avx512) $(if $(filter aarch64,$(BENCH_CPU)),neon)
BENCH_scalar := -DSNAPKV_ISA=SNAPKV_ISA_SCALAR
BENCH_avx2   := -DSNAPKV_ISA=SNAPKV_ISA_AVX2 -mavx2 -mfma -mf16c
BENCH_avx512 := -DSNAPKV_ISA=SNAPKV_ISA_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
BENCH_neon   := -DSNAPKV_ISA=SNAPKV_ISA_NEON
BB          := $(B)/bench-$(BENCH_KIND)
BENCH_LINKS := 'int openblas_get_parallel(void);' 'int main(void) { return openblas_get_parallel(); }'

define bench_path
BENCH_OBJECTS += $(BB)/path_$(1)_$(2).o
$(BB)/path_$(1)_$(2).o: tests/bench/path.c tests/bench/bench.h $(H)
	@mkdir -p $$(@D)
	$(3) $(BASE) -O3 $(BENCH_$(1)) -DBENCH_PATH=bench_$(1)_$(2) -DBENCH_LABEL='"$(1) $(2)"' \
	    -DBENCH_FLAGS='"-O3 $(BENCH_$(1))"' -c -o $$@ $$<
endef
$(foreach i,$(BENCH_ISAS),$(eval $(call bench_path,$i,$(BENCH_KIND),$(CC))))
$(foreach c,$(BENCH_OTHER),$(foreach i,$(BENCH_ISAS),$(eval $(call bench_path,$i,$c,$c))))

$(BB)/bench: tests/bench/bench.c tests/bench/nth_element.cc tests/bench/sgemm.c $(BENCH_OBJECTS)
	@set -e; peers=; libs=; has_cxx=0; has_blas=0; \
	if $(CXX) -std=c++11 -O3 $(NATIVE) -Iinclude -c -o $(BB)/nth_element.o tests/bench/nth_element.cc; then \
	    has_cxx=1; peers=$(BB)/nth_element.o; fi; \
	if printf '%s\n' $(BENCH_LINKS) | $(CC) -x c - -o /dev/null -lopenblas 2>/dev/null; then \
	    has_blas=1; peers="$$peers tests/bench/sgemm.c"; libs=-lopenblas; fi; \
	set -x; $(CC) $(BASE) -O2 -DBENCH_HAS_CXX=$$has_cxx -DBENCH_HAS_OPENBLAS=$$has_blas \
	    -DBENCH_PATHS='$(foreach i,$(BENCH_ISAS),PATH(bench_$i_$(BENCH_KIND)))' \
	    -DBENCH_OTHER_PATHS='$(foreach c,$(BENCH_OTHER),$(foreach i,$(BENCH_ISAS),PATH(bench_$i_$c)))' \
	    -o $@ $< $$peers $(BENCH_OBJECTS) $$libs -pthread -lm

bench: $(BB)/bench ## times and peers, about 2 minutes; BENCH="--quick vote" for a part, BENCH=--help
	$(BB)/bench $(BENCH)

# ---- one binary for every machine ----------------------------------------------------------

# A path each, and a second scalar one with the bits of the others. All else has the plain flags.
BENCH_scalar_fma := $(BENCH_scalar) -DSNAPKV_SCALAR_FMA=1
DISPATCH_PATHS   := $(patsubst %,$(B)/dispatch_%.o,scalar_fma $(BENCH_ISAS))

$(B)/dispatch_%.o: examples/dispatch/path.c examples/dispatch/path.h $(H) | $(B)
	$(CC) $(BASE) -O3 $(BENCH_$*) -DDISPATCH_PATH=path_$* -c -o $@ $<

$(B)/dispatch: examples/dispatch/dispatch.c $(DISPATCH_PATHS)
	$(CC) $(BASE) -O2 -o $@ $^ -lm

examples: $(B)/dispatch

$(B):
	@mkdir -p $(B)

clean: ## remove build/
	rm -rf $(B)
