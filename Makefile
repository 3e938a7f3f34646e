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
.PHONY: help demo examples check clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- examples ------------------------------------------------------------------------------

EXAMPLES := $(patsubst examples/%.c,$(B)/%,$(wildcard examples/*.c))

examples: $(EXAMPLES) ## build every example into build/

$(B)/%: examples/%.c $(wildcard examples/*.h) $(H) | $(B)
	$(CC) $(BASE) $(CFLAGS) -O3 $(NATIVE) -Iexamples -o $@ $< -lm

demo: $(B)/recall ## the main job on the built-in model: recall against capacity, a table and a plot
	$(B)/recall

# ---- tests ---------------------------------------------------------------------------------

# Three builds of every unit test: what plain flags give (no fused multiply-add on x86), the scalar
# path with fused multiply-add, and the fastest path of this machine.
UNIT        := $(patsubst tests/unit/test_%.c,%,$(wildcard tests/unit/test_*.c))
BUILDS      := plain scalar native
FLAGS_plain  := -DSNAPKV_ISA=SNAPKV_ISA_SCALAR
FLAGS_scalar := $(NATIVE) -DSNAPKV_ISA=SNAPKV_ISA_SCALAR -DSNAPKV_SCALAR_FMA=1
FLAGS_native := $(NATIVE)
SUPPORT      := $(wildcard tests/support/*.c)
SUPPORT_H    := $(wildcard tests/support/*.h)
UNIT_BINS    := $(foreach b,$(BUILDS),$(UNIT:%=$(B)/unit/$b/%))
CHECKS       := $(foreach b,$(BUILDS),$(UNIT:%=unit/$b/%=$(B)/unit/$b/%))

define unit_rule
$(B)/unit/$(1)/%: tests/unit/test_%.c $(SUPPORT) $(SUPPORT_H) $(H) | $(B)/cmocka.ok
	@mkdir -p $$(@D)
	$(CC) $(BASE) $(CFLAGS) $(FLAGS_$(1)) -DBUILD_NAME='"$(1)"' -Itests/support -o $$@ $$< $(SUPPORT) -lcmocka -lm
endef
$(foreach b,$(BUILDS),$(eval $(call unit_rule,$b)))

check: $(UNIT_BINS) ## install cmocka if it is missing, then run every test
	@tests/run.sh $(foreach c,$(CHECKS),'$c')

$(B)/cmocka.ok: | $(B)
	@CC='$(CC)' sh tests/need_cmocka.sh
	@touch $@

$(B):
	@mkdir -p $(B)

clean: ## remove build/
	rm -rf $(B)
