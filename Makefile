# snapkv.h: `make` lists the targets. Everything that is built goes under build/.

CC  ?= cc
CXX ?= c++
B   := build
H   := include/snapkv.h

# The flags of the examples and tests. NATIVE: the header chooses the fastest path of this machine.
WARN   := -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wundef -pedantic
NATIVE := $(shell $(CC) -march=native -E -x c /dev/null >/dev/null 2>&1 && echo -march=native)
CFLAGS ?= -O2 -g
BASE   := -std=c99 $(WARN) -Iinclude

# The flags of each path.
ISA_scalar := -DSNAPKV_ISA=SNAPKV_ISA_SCALAR
ISA_avx2   := -DSNAPKV_ISA=SNAPKV_ISA_AVX2 -mavx2 -mfma -mf16c
ISA_avx512 := -DSNAPKV_ISA=SNAPKV_ISA_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 \
    -mfma -mf16c
ISA_neon   := -DSNAPKV_ISA=SNAPKV_ISA_NEON
ISA_scalar_fma := $(ISA_scalar) -DSNAPKV_SCALAR_FMA=1

.DEFAULT_GOAL := help
.PHONY: help demo quality pictures llama examples check vectors bench install uninstall clean
.DELETE_ON_ERROR:
.SECONDARY:

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- examples ------------------------------------------------------------------------------

EXAMPLES := $(patsubst examples/%.c,$(B)/%,$(wildcard examples/*.c))

examples: $(EXAMPLES) ## build every example into build/

$(B)/%: examples/%.c $(wildcard examples/*.h) $(H) | $(B)
	$(CC) $(BASE) $(CFLAGS) -O3 $(NATIVE) -Iexamples -o $@ $< -lm

demo: $(B)/recall $(B)/keepmap ## the main job on the built-in model: table and plots
	$(B)/recall
	$(B)/keepmap

# What docs/choosing.md says, in some 2 minutes of two processors.
quality: $(B)/quality ## what every way to cut a cache costs, on two tasks: tables, a picture
	@$(B)/quality text --data $(B)/quality-text.tsv >$(B)/quality-text.txt & \
	$(B)/quality recall --data $(B)/quality-recall.tsv && wait $$! && cat $(B)/quality-text.txt
	@if command -v gnuplot >/dev/null; then gnuplot -e "recall='$(B)/quality-recall.tsv'" \
	    -e "text='$(B)/quality-text.tsv'; out='$(B)/quality.svg'" tests/quality/quality.gp && \
	    echo 'Picture: $(B)/quality.svg'; else echo 'SKIP the picture: gnuplot is missing'; fi

$(B)/quality: tests/quality/quality.c $(wildcard examples/*.h) $(H) | $(B)
	$(CC) $(BASE) $(CFLAGS) -O3 $(NATIVE) -o $@ $< -lm

pictures: demo quality ## write the pictures of docs/ anew
	cp $(B)/recall.svg $(B)/keepmap.svg $(B)/quality.svg docs/

$(B)/threads: BASE += -pthread

llama: $(B)/llama ## a text goes on from a compressed cache; build/llama --help for your own
	$(B)/llama --compare

# ---- llama.cpp -----------------------------------------------------------------------------

# Debian's openmpi, or any other mpicc.
MPICC ?= mpicc
mpi: ## one prompt whose keys lie on several machines: mpirun -n 4 build/ranks --verify
	@if command -v $(MPICC) >/dev/null; then $(MAKE) --no-print-directory $(B)/ranks; \
	else echo 'SKIP: no $(MPICC) here (Debian: libopenmpi-dev openmpi-bin)'; fi

$(B)/ranks: examples/mpi/ranks.c $(wildcard examples/*.h) $(H) | $(B)
	$(MPICC) $(BASE) $(CFLAGS) -O3 $(NATIVE) -Iexamples -o $@ $< -lm

# With an installed library (pkg-config), or with LLAMA=folder: where it is installed or was built.
LLAMA         :=
LLAMA_LINK    :=
LLAMA_COMPILE  = flags=$$(examples/llamacpp/flags.sh '$(LLAMA)') && \
    $(CC) $(BASE) $(CFLAGS) -O3 $(NATIVE) -o $@ $< $(filter %.o,$^) $$flags $(LLAMA_LINK)
LLAMA_SOURCES := $(wildcard examples/llamacpp/*.h examples/llamacpp/*.c tests/llamacpp/*.h \
    examples/*.h) $(H)

.PHONY: mpi llamacpp check-llamacpp $(B)/snapkv-llama
llamacpp: $(B)/snapkv-llama ## build/snapkv-llama, on your llama.cpp: installed, or LLAMA=folder

$(B)/snapkv-llama: examples/llamacpp/snapkv-llama.c | $(B)
	$(LLAMA_COMPILE) -lm

$(B)/llamacpp/snapkv-llama: examples/llamacpp/snapkv-llama.c $(LLAMA_SOURCES)
	@mkdir -p $(@D)
	$(LLAMA_COMPILE) -lm

$(B)/llamacpp/engine.o: tests/llamacpp/engine.c $(LLAMA_SOURCES)
	@mkdir -p $(@D)
	$(CC) $(BASE) $(CFLAGS) $(NATIVE) -c -o $@ $<

$(B)/llamacpp/test_llamacpp: tests/llamacpp/test_llamacpp.c $(B)/llamacpp/engine.o \
    $(LLAMA_SOURCES) | $(B)/cmocka.ok
	$(LLAMA_COMPILE) -lcmocka -lm

check-llamacpp: $(B)/cmocka.ok ## what that promises; fetches Debian's library if there is none
	@tests/run.sh llamacpp

# ---- tests ---------------------------------------------------------------------------------

# tests/checks lists the checks: a new one is a line there, whatever it needs is built by its script
# or stands in NEEDED. Both are run as many at a time as there are processors; run.sh counts.
NEEDED := examples $(B)/quality $(B)/accuracy $(B)/make_vectors
ABREAST = --no-print-directory -j"$$(getconf _NPROCESSORS_ONLN || echo 1)"

check: $(B)/cmocka.ok ## every promise, the quick way; installs cmocka if it is missing
	@$(MAKE) $(ABREAST) $(NEEDED)
	@tests/run.sh quick

check-all: $(B)/cmocka.ok ## every promise in full; fuzzing, sanitizers, scale
	@$(MAKE) $(ABREAST) $(NEEDED)
	@FULL=1 FUZZ_SECONDS=$(FUZZ_SECONDS) tests/run.sh quick long

unit: ## all unit tests, built natively; some: make unit TEST="vote pool" BUILD=scalar
	@tests/unit/unit.sh $(BUILD) $(TEST)

# cmocka is what all programs of tests/unit are written for. Only these install it.
check check-all check-llamacpp: CMOCKA := install
$(B)/cmocka.ok: | $(B)
	@tests/need_cmocka.sh $(CMOCKA)
	@touch $@

# A build of the unit tests: a compiler with its flags. The library is compiled once a build, in
# tests/support/library.c; the tests and their support see its declarations.
#   plain    what plain flags give: no fused multiply-add on x86
#   scalar   the scalar path with fused multiply-add
#   native   the fastest path of this machine
#   fast     native with -ffast-math, which on x86 also flushes subnormals, and
#   fast-plain  plain with it: for what must hold even so
BUILD          ?= native
CLANG          ?= clang
GCC            ?= gcc
FUZZ_SECONDS   ?= 600
COMPILE_plain  := $(CC) $(CFLAGS) $(ISA_scalar)
COMPILE_scalar := $(CC) $(CFLAGS) $(NATIVE) $(ISA_scalar_fma)
COMPILE_native := $(CC) $(CFLAGS) $(NATIVE)
COMPILE_fast   := $(CC) $(CFLAGS) -O3 -ffast-math $(NATIVE)
COMPILE_fast-plain := $(CC) $(CFLAGS) -O3 -ffast-math $(ISA_scalar)

# The same tests, watched. With -std=c99 gcc contracts no a * b + c of the tests and examples; clang
# is told not to. valgrind takes some 30 times as long and knows no AVX-512.
UBSAN  := -fsanitize=address,undefined -fno-sanitize-recover=all
MEMORY := -ffp-contract=off -fsanitize=memory -fsanitize-memory-track-origins \
    -fno-sanitize-recover=all
INTEGER := -ffp-contract=off -fsanitize=integer -fno-sanitize-recover=all \
    -fsanitize-ignorelist=tests/unit/integer.txt
COMPILE_gcc-native      := $(GCC) -O1 -g $(NATIVE) $(UBSAN)
COMPILE_gcc-scalar      := $(GCC) -O1 -g $(ISA_scalar) $(UBSAN)
COMPILE_clang-native    := $(CLANG) -O1 -g $(NATIVE) -ffp-contract=off $(UBSAN)
COMPILE_clang-scalar    := $(CLANG) -O1 -g $(ISA_scalar) -ffp-contract=off $(UBSAN)
COMPILE_integer-native  := $(CLANG) -O1 -g $(NATIVE) $(INTEGER)
COMPILE_integer-scalar  := $(CLANG) -O1 -g $(ISA_scalar) $(INTEGER)
COMPILE_memory-native   := $(CLANG) -O1 -g $(NATIVE) $(MEMORY)
COMPILE_memory-scalar   := $(CLANG) -O1 -g $(ISA_scalar) $(MEMORY)
COMPILE_memcheck-scalar := $(GCC) -O2 -g -DTESTS_MEMCHECK $(ISA_scalar)
COMPILE_memcheck-avx2   := $(GCC) -O2 -g -DTESTS_MEMCHECK $(ISA_avx2)

# Large prompts, with the overflow checks of UBSan too; clang's also see a number that changes when
# it is narrowed.
COMPILE_large       := $(CC) -O3 -g $(NATIVE)
COMPILE_large-ubsan := $(CLANG) -O2 -g $(NATIVE) -fsanitize=undefined,implicit-conversion \
    -fno-sanitize-recover=all

SUPPORT   := $(patsubst tests/support/%.c,%.o,$(wildcard tests/support/*.c))
HEADERS   := $(wildcard tests/support/*.h tests/fuzz/*.h examples/*.h examples/llamacpp/*.h) $(H)
DECLARED  := -DSNAPKV_DECLARATIONS_ONLY -Itests/support

# $* is BUILD/NAME: $(*D) names the build, $(*F) the file. The second expansion knows them.
.SECONDEXPANSION:
$(B)/support/%.o: tests/support/$$(*F).c $(HEADERS) | $(B)/cmocka.ok
	@mkdir -p $(@D)
	$(COMPILE_$(*D)) $(BASE) $(DECLARED) -c -o $@ $<

$(B)/unit/%: $$(wildcard tests/unit/test_$$(*F).c tests/scale/$$(*F).c) $(HEADERS) \
    $$(addprefix $(B)/support/$$(*D)/,$(SUPPORT))
	@mkdir -p $(@D)
	$(COMPILE_$(*D)) $(BASE) $(DECLARED) -DDIRECTORY='"$(@D)"' -o $@ $< $(filter %.o,$^) -lcmocka -lm

# The scripts compile with the same compilers and warnings.
export B BASE CC CXX CLANG GCC

.PHONY: unit fuzz sanitize memcheck scale tsan check-builds baremetal coverage mutants lint tools
fuzz: ## hostile inputs against the reference, FUZZ_SECONDS=600 a target
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/run.sh 'fuzz/*'

sanitize: ## the unit tests under ASan, UBSan (gcc, clang) and MSan
	@tests/run.sh 'sanitize/*'

memcheck: ## the unit tests under valgrind, scalar and AVX2
	@tests/run.sh 'memcheck/*'

scale: ## prompts of 2^20 tokens, arrays of INT32_MAX entries
	@tests/run.sh 'scale/*'

tsan: ## many sets on several threads under ThreadSanitizer, and the bits of one
	@tests/run.sh 'tsan/*'

check-builds: ## every language, compiler and flag; other processors and Windows, emulated
	@FULL=1 tests/run.sh 'builds/*'

baremetal: ## Cortex-M4F and M7 without a system, emulated: bits, code size, stack, workspace
	@FULL=1 tests/run.sh baremetal

coverage: ## lines and branches of the header that the unit tests run
	@tests/run.sh coverage

mutants: ## changes to the header, one at a time: does a unit test notice each?
	@tests/run.sh mutants

lint: ## clang-tidy, cppcheck and gcc -fanalyzer
	@tests/run.sh lint

# ---- the numeric contract ------------------------------------------------------------------

$(B)/make_vectors: tests/vectors/make_vectors.c $(SUPPORT:%=$(B)/support/scalar/%) $(HEADERS)
	$(COMPILE_scalar) $(BASE) -Itests/support -o $@ $< $(filter %.o,$^) -lcmocka -lm

vectors: $(B)/make_vectors ## write tests/vectors/vectors.txt anew from the scalar path
	$(B)/make_vectors >$(B)/vectors.txt
	cp $(B)/vectors.txt tests/vectors/vectors.txt

$(B)/accuracy: tests/parity/accuracy.c tests/support/splitmix.h $(H) | $(B)
	$(CC) $(BASE) $(CFLAGS) $(NATIVE) -Itests/support -o $@ $< -lm

# ---- fuzzing -------------------------------------------------------------------------------

# libFuzzer is clang's. The targets and the library are instrumented; what judges the answers isn't.
FUZZED         := library fuzz_layer fuzz_cursor fuzz_state blocks
COMPILE_FUZZED := -O1 -fsanitize=fuzzer-no-link $(UBSAN)
FUZZ_native    := $(NATIVE)
FUZZ_scalar    := $(NATIVE) $(ISA_scalar_fma)

$(B)/fuzz/%.o: $$(wildcard tests/fuzz/$$(*F).c tests/support/$$(*F).c) $(HEADERS) | $(B)/cmocka.ok
	@mkdir -p $(@D)
	$(CLANG) $(BASE) -g $(FUZZ_$(*D)) $(DECLARED) -Itests/fuzz \
	    $(if $(filter $(*F),$(FUZZED)),$(COMPILE_FUZZED),-O2) -c -o $@ $<

FUZZ_OBJECTS := $(SUPPORT) judge.o blocks.o
$(B)/fuzz/%: $(B)/fuzz/$$(*D)/$$(*F).o $$(addprefix $(B)/fuzz/$$(*D)/,$(FUZZ_OBJECTS))
	$(CLANG) -fsanitize=fuzzer $(UBSAN) -o $@ $^ -lcmocka -lm

TOOLS := clang lld libclang-rt-14-dev clang-tidy cppcheck gcovr libcmocka-dev libsimde-dev \
    pkg-config gcc-aarch64-linux-gnu gcc-arm-linux-gnueabihf gcc-i686-linux-gnu \
    gcc-s390x-linux-gnu gcc-powerpc64-linux-gnu gcc-riscv64-linux-gnu gcc-mingw-w64-x86-64 \
    gcc-arm-none-eabi libnewlib-arm-none-eabi libc6-dev-arm64-cross libc6-dev-armhf-cross \
    libc6-dev-i386-cross libc6-dev-s390x-cross libc6-dev-ppc64-cross libc6-dev-riscv64-cross \
    qemu-user qemu-system-arm valgrind wine wine64

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
BENCH_ISAS  := scalar $(if $(filter x86_64,$(BENCH_CPU)),avx2 avx512) \
    $(if $(filter aarch64,$(BENCH_CPU)),neon)
BB          := $(B)/bench-$(BENCH_KIND)
BENCH_LINKS := 'int openblas_get_parallel(void);' \
    'int main(void) { return openblas_get_parallel(); }'

BENCH_CC_$(BENCH_KIND) := $(CC)
BENCH_CC     = $(or $(BENCH_CC_$(1)),$(1))
BENCH_PAIRS  := $(foreach c,$(BENCH_KIND) $(BENCH_OTHER),$(BENCH_ISAS:%=%_$c))
BENCH_OBJECTS := $(BENCH_PAIRS:%=$(BB)/path_%.o)

# $* is ISA_COMPILER.
$(BB)/path_%.o: ISA = $(firstword $(subst _, ,$*))
$(BB)/path_%.o: COMPILER = $(lastword $(subst _, ,$*))
$(BB)/path_%.o: tests/bench/path.c tests/bench/bench.h $(H)
	@mkdir -p $(@D)
	$(call BENCH_CC,$(COMPILER)) $(BASE) -O3 $(ISA_$(ISA)) -DBENCH_PATH=bench_$* \
	    -DBENCH_LABEL='"$(ISA) $(COMPILER)"' -DBENCH_FLAGS='"-O3 $(ISA_$(ISA))"' -c -o $@ $<

$(BB)/bench: tests/bench/bench.c tests/bench/nth_element.cc tests/bench/sgemm.c $(BENCH_OBJECTS)
	@set -e; peers=; libs=; has_cxx=0; has_blas=0; \
	if $(CXX) -std=c++11 -O3 $(NATIVE) -Iinclude -c -o $(BB)/nth_element.o \
	    tests/bench/nth_element.cc; then \
	    has_cxx=1; peers=$(BB)/nth_element.o; fi; \
	if printf '%s\n' $(BENCH_LINKS) | $(CC) -x c - -o /dev/null -lopenblas 2>/dev/null; then \
	    has_blas=1; peers="$$peers tests/bench/sgemm.c"; libs=-lopenblas; fi; \
	set -x; $(CC) $(BASE) -O2 -DBENCH_HAS_CXX=$$has_cxx -DBENCH_HAS_OPENBLAS=$$has_blas \
	    -DBENCH_PATHS='$(BENCH_ISAS:%=PATH(bench_%_$(BENCH_KIND)))' \
	    -DBENCH_OTHER_PATHS='$(foreach c,$(BENCH_OTHER),$(BENCH_ISAS:%=PATH(bench_%_$c)))' \
	    -o $@ $< $$peers $(BENCH_OBJECTS) $$libs -pthread -lm

bench: $(BB)/bench ## times and peers, 2 minutes; a part: BENCH="--quick vote"; BENCH=--help
	$(BB)/bench $(BENCH)

# ---- one binary for every machine ----------------------------------------------------------

# A path each, and a second scalar one with the bits of the others. All else has the plain flags.
DISPATCH_PATHS   := $(patsubst %,$(B)/dispatch_%.o,scalar_fma $(BENCH_ISAS))

$(B)/dispatch_%.o: examples/dispatch/path.c examples/dispatch/path.h $(H) | $(B)
	$(CC) $(BASE) -O3 $(ISA_$*) -DDISPATCH_PATH=path_$* -c -o $@ $<

$(B)/dispatch: examples/dispatch/dispatch.c $(DISPATCH_PATHS)
	$(CC) $(BASE) -O2 -o $@ $^ -lm

examples: $(B)/dispatch

$(B):
	@mkdir -p $(B)

clean: ## remove build/
	rm -rf $(B)
