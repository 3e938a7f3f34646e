#!/bin/sh
# Are the tests awake? Makes each change of mutants.txt to a copy of the header, one at a time, and
# runs the unit tests of the scalar build until one fails. A mutation that survives all, or no longer
# finds its place, fails the check.
#
#     mutants.sh [LINE...]     all mutations, or those of these lines of mutants.txt
set -u
out=${B:-build}/mutants
list=tests/unit/mutants.txt
# Timing, stack depth and prompts of a million tokens tell nothing here, and a model's run is long.
order='cases errors select vote pool top_k gather compress layouts dtypes mass ledger cursor finite
       corners article random workspace'
cc=${CC:-cc}
flags='-std=c99 -O1 -w -Itests/support -DSNAPKV_ISA=SNAPKV_ISA_SCALAR'
CC=$cc sh tests/need_cmocka.sh || exit 1
rm -rf "$out"
mkdir -p "$out/include"

# The support that does not call the library is compiled once.
plain=
callers=
for source in tests/support/*.c; do
    if grep -qE '\bsnapkv_[a-z_]+\(' "$source"; then
        callers="$callers $source"
    else
        object=$out/$(basename "$source" .c).o
        $cc $flags -Iinclude -c -o "$object" "$source" || exit 1
        plain="$plain $object"
    fi
done

build_and_run() { # test, include directory, seconds: 2 does not build, 1 fails
    $cc $flags -I"$2" -o "$out/test" "tests/unit/test_$1.c" $callers $plain -lcmocka -lm \
        >"$out/log" 2>&1 || return 2
    # A mutation may loop or corrupt what comes after: a time limit, and any status but 0.
    timeout $3 "$out/test" >"$out/log" 2>&1 || return 1
}

# Nothing is killed by a test that fails anyway, or that takes its time anyway.
for test in $order; do
    start=$(date +%s)
    build_and_run $test include 600 || {
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
    for test in $hint $order; do
        eval "limit=\$limit_$test"
        build_and_run $test "$out/include" $limit
        case $? in
        1)
            killer=$test
            break
            ;;
        2)
            echo "$list:$number: does not compile: $new"
            head -3 "$out/log"
            break
            ;;
        esac
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
