#!/bin/sh
# Builds and runs unit tests: unit.sh BUILD [TEST ...]
#
# The Makefile's COMPILE_BUILD says how; without a TEST it is all of them. Those whose build is
#
#   gcc-*, clang-*   run under AddressSanitizer and UndefinedBehaviorSanitizer
#   memory-*         under MemorySanitizer (clang)
#   integer-*        under -fsanitize=integer (clang), the library alone
#   memcheck-*       under valgrind
#   fast*            are those that hold with -ffast-math
#   large*           are the large ones, of tests/scale
#
# Every report of a sanitizer or of valgrind ends the test that caused it.
build=$1
shift
: "${B:=build}" "${CLANG:=clang}" "${GCC:=gcc}" "${CC:=cc}"
all=$(ls tests/unit/test_*.c | sed 's/.*test_//; s/\.c$//')

skip() {
    echo "SKIP: $build needs $1"
    exit 77
}

compiles() { # COMPILER FLAG ...
    echo 'int main(void) { return 0; }' | "$@" -x c - -o /dev/null 2>/dev/null
}

run=
case $build in
fast*)
    compiles $CC || skip "$CC (Debian: apt-get install gcc)"
    all='contract finite' # ties, and what is not finite
    ;;
plain | scalar | native) compiles $CC || skip "$CC (Debian: apt-get install gcc)" ;;
gcc-*) compiles $GCC -fsanitize=address,undefined || skip "$GCC (Debian: apt-get install gcc)" ;;
clang-*)
    compiles $CLANG -fsanitize=address,undefined ||
        skip "$CLANG and its sanitizers (Debian: make tools)"
    ;;
integer-*)
    compiles $CLANG -fsanitize=integer ||
        skip "$CLANG and its sanitizers (Debian: make tools)"
    ;;
memory-*)
    compiles $CLANG -fsanitize=memory || skip "$CLANG with MemorySanitizer (Debian: make tools)"
    ;;
memcheck-*)
    command -v valgrind >/dev/null || skip 'valgrind (Debian: make tools)'
    run='valgrind -q --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite'
    # Not what only does more of the same, nor what looks at its own stack or at 16 GiB of addresses.
    all=$(echo "$all" | grep -vxE 'random|stack|scale|llama|cases|corners|workspace')
    ;;
large) all='longest long_prompt' ;;
large-ubsan)
    compiles $CLANG -fsanitize=undefined,implicit-conversion ||
        skip "$CLANG and its sanitizers (Debian: make tools)"
    all='longest long_prompt'
    ;;
*)
    echo "$build is no build: see COMPILE_ in the Makefile"
    exit 1
    ;;
esac
case $build in
*-avx2) grep -qw avx2 /proc/cpuinfo 2>/dev/null || skip 'a processor with AVX2' ;;
esac

[ $# -gt 0 ] || set -- $all
programs=
for test in "$@"; do
    if [ ! -f "tests/unit/test_$test.c" ] && [ ! -f "tests/scale/$test.c" ]; then
        echo "there is no test $test; there are:" $all
        exit 1
    fi
    programs="$programs $B/unit/$build/$test"
done
"${MAKE:-make}" -s -j "$(getconf _NPROCESSORS_ONLN || echo 1)" "B=$B" $programs || exit 1
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in $programs; do
    start=$(date +%s)
    if $run "$program" >"$log" 2>&1; then
        grep '^SKIP' "$log"
        echo "ok    $program ($(($(date +%s) - start)) s)"
    else
        grep -vE '^\[ (RUN|      OK)' "$log"
        echo "FAIL  $program"
        failed=$((failed + 1))
    fi
done
echo "$# test programs, $failed failed"
[ $failed -eq 0 ]
