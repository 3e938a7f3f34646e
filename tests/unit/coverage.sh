#!/bin/sh
# How much of the header the unit tests run: lines and branches, by gcov and gcovr, over the scalar
# build and the fastest one of this machine. What is never run is listed, and docs/reliability.md says
# why; fails below these shares, in percent.
set -u
. tests/common.sh
least_lines=100
least_branches=99
out=$B/coverage
# Timing, stack depth and prompts of a million tokens are not for an unoptimised build, and the
# models need no library.
leave_out='scale stack tokenizer'
cc=gcc

for tool in $cc gcovr python3; do
    has $tool || {
        skip "no $tool (Debian: make tools)"
        exit 77
    }
done
CC=$cc tests/need_cmocka.sh || exit 1

rm -rf "$out"
mkdir -p "$out/include"
# Functions that are inlined by force would be counted once a caller: here they are ordinary ones.
sed 's/^\(#define SKV_INLINE  *static inline\) __attribute__((always_inline))$/\1/' \
    include/snapkv.h >"$out/include/snapkv.h"
if cmp -s include/snapkv.h "$out/include/snapkv.h"; then
    echo 'FAIL: SKV_INLINE is not where it was'
    exit 1
fi
native=$($cc -march=native -E -x c /dev/null >/dev/null 2>&1 && echo -march=native)

run() { # name, flags
    mkdir -p "$out/$1"
    flags="-std=c99 -O0 -g -w --coverage -DSNAPKV_DECLARATIONS_ONLY -I$out/include -Iexamples -Itests/support $2"
    objects=
    for source in tests/support/*.c; do
        object=$out/$1/$(basename "$source" .c).o
        $cc $flags -c -o "$object" "$source" || return 1
        objects="$objects $object"
    done
    for source in tests/unit/test_*.c; do
        test=$(basename "$source" .c)
        case " $leave_out " in *" ${test#test_} "*) continue ;; esac
        $cc $flags -DDIRECTORY="\"$out/$1\"" -c -o "$out/$1/$test.o" "$source" &&
            $cc $flags -o "$out/$1/$test" "$out/$1/$test.o" $objects -lcmocka -lm || return 1
        "$out/$1/$test" >"$out/$1/$test.log" 2>&1 || {
            echo "FAIL: $1/$test"
            tail -5 "$out/$1/$test.log"
            return 1
        }
    done
}

run scalar '-DSNAPKV_ISA=SNAPKV_ISA_SCALAR' || exit 1
[ -z "$native" ] || run native "$native" || exit 1

reports=
for build in scalar native; do
    [ -d "$out/$build" ] || continue
    gcovr --root . --filter ".*coverage/include/snapkv.h" --exclude-unreachable-branches \
        "$out/$build" --json "$out/$build.json" || exit 1
    reports="$reports $out/$build.json"
done
python3 tests/unit/coverage.py "$out/include/snapkv.h" $least_lines $least_branches $reports
