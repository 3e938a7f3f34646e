#!/bin/sh
# Are the tests awake? Makes each change of mutants.txt to a copy of the header, one at a time, and
# runs the unit tests of the scalar build until one fails. A mutation that survives all, or no longer
# finds its place, fails the check.
#
#     mutants.sh [LINE...]     all mutations, or those of these lines of mutants.txt
set -u
. tests/common.sh
out=$B/mutants
list=tests/unit/mutants.txt
# Timing, stack depth and prompts of a million tokens tell nothing here, and a model's run is long.
order='cases errors select vote steps pool top_k allocate gather compress alias pages layouts dtypes
       mass ledger cursor finite corners article contract parts random workspace'
flags='-std=c99 -O1 -w -Itests/support -DSNAPKV_ISA=SNAPKV_ISA_SCALAR'
tests/need_cmocka.sh || exit 1
rm -rf "$out"
mkdir -p "$out/include"

# The tests see declarations only: they are compiled once, the library for each mutation.
objects=
for source in tests/support/*.c; do
    [ "$source" != tests/support/library.c ] || continue
    object=$out/$(basename "$source" .c).o
    $CC $flags -DSNAPKV_DECLARATIONS_ONLY -Iinclude -c -o "$object" "$source" || exit 1
    objects="$objects $object"
done
for test in $order; do
    $CC $flags -DSNAPKV_DECLARATIONS_ONLY -Iinclude -c -o "$out/test_$test.o" \
        "tests/unit/test_$test.c" || exit 1
done

build() { # include directory
    $CC $flags -I"$1" -c -o "$out/library.o" tests/support/library.c >"$out/log" 2>&1
}

run() { # test, seconds
    $CC -o "$out/test" "$out/test_$1.o" $objects "$out/library.o" -lcmocka -lm || exit 1
    # A mutation may loop or corrupt what comes after: a time limit, and any status but 0.
    timeout $2 "$out/test" >"$out/log" 2>&1
}

# Nothing is killed by a test that fails anyway, or that takes its time anyway.
build include || exit 1
for test in $order; do
    start=$(date +%s)
    run $test 600 || {
        echo "FAIL: test_$test fails without any mutation"
        exit 1
    }
    eval "limit_$test=$((10 + 10 * ($(date +%s) - start)))"
done

killed=0
survived=0
number=0
tab=$(printf '\t')
while IFS=$tab read -r hint old new; do
    number=$((number + 1))
    case $hint in '#'*) continue ;; esac
    case " $* " in
    '  ' | *" $number "*) ;;
    *) continue ;;
    esac
    OLD=$old NEW=$new awk '
        BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
        (at = index($0, old)) {
            $0 = substr($0, 1, at - 1) new substr($0, at + length(old))
            found++
        }
        { print }
        END { exit found != 1 }' include/snapkv.h >"$out/include/snapkv.h" || {
        echo "$list:$number: stands not exactly once in the header: $old"
        survived=$((survived + 1))
        continue
    }
    killer=
    if ! build "$out/include"; then
        echo "$list:$number: does not compile: $new"
        head -3 "$out/log"
        survived=$((survived + 1))
        continue
    fi
    for test in $hint $order; do
        eval "limit=\$limit_$test"
        if ! run $test $limit; then
            killer=$test
            break
        fi
    done
    if [ -n "$killer" ]; then
        killed=$((killed + 1))
        [ "$killer" = "$hint" ] || killer="$killer, not $hint"
        echo "$number: killed by $killer"
    else
        echo "$list:$number: survives: $old -> $new"
        survived=$((survived + 1))
    fi
done <$list
echo "$killed of $((killed + survived)) mutants killed"
[ $survived -eq 0 ]
