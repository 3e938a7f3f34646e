#!/bin/sh
# What the static analysers say of the header: clang-tidy (.clang-tidy says what is left out, and why),
# cppcheck and gcc -fanalyzer, on the scalar path and a vector path. Nothing, if it passes.
set -u
out=${B:-build}/lint
source=tests/compile/all_functions.c
mkdir -p "$out"
failed=0
vector=
[ "$(uname -m)" != x86_64 ] || vector='-mavx2 -mfma -mf16c'

silent() { # what, command: neither an error nor a word
    what=$1
    shift
    "$@" >"$out/log" 2>&1
    status=$?
    # The count of what system headers caused is no finding.
    grep -vE '^[0-9]+ warnings? generated|^Suppressed |^Use -header-filter' "$out/log" >"$out/words"
    if [ $status -ne 0 ] || [ -s "$out/words" ]; then
        echo "FAIL: $what"
        head -40 "$out/words"
        failed=1
    else
        echo "clean: $what"
    fi
}

if command -v clang-tidy >/dev/null; then
    for flags in -DSNAPKV_ISA=SNAPKV_ISA_SCALAR "$vector"; do
        silent "clang-tidy $flags" clang-tidy --quiet $source -- -std=c99 -Iinclude $flags
    done
else
    echo 'SKIP: no clang-tidy'
fi

if command -v cppcheck >/dev/null; then
    options='--enable=warning,style,performance,portability --error-exitcode=1 --quiet -Iinclude
             -DSNAPKV_ISA=1'
    silent 'cppcheck, C99' cppcheck $options --std=c99 $source
    # cstyleCast: it is a C header. memsetClassFloat: all bits zero is 0.0f in IEEE 754, which the
    # numeric contract asks for anyway.
    silent 'cppcheck, C++11' cppcheck $options --std=c++11 --language=c++ --suppress=cstyleCast \
        --suppress=memsetClassFloat $source
else
    echo 'SKIP: no cppcheck'
fi

if command -v gcc >/dev/null && gcc -fanalyzer -E -x c /dev/null >/dev/null 2>&1; then
    for flags in -DSNAPKV_ISA=SNAPKV_ISA_SCALAR "$vector"; do
        silent "gcc -fanalyzer $flags" gcc -std=c99 -O1 -fanalyzer -Wall -Wextra -Iinclude $flags \
            -c -o "$out/o.o" $source
    done
else
    echo 'SKIP: no gcc with -fanalyzer'
fi
exit $failed
