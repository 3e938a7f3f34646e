#!/bin/sh
# The unit tests in a build that watches them: sanitized.sh BUILD TEST ...
#
#   gcc-*, clang-*   AddressSanitizer and UndefinedBehaviorSanitizer
#   memory-*         MemorySanitizer (clang)
#   memcheck-*       run by valgrind
#
# Every report ends the test that caused it.
build=$1
shift
: "${B:=build}"
: "${CLANG:=clang}"
: "${GCC:=gcc}"

skip() {
    echo "SKIP: $build needs $1"
    exit 77
}

compiles() { # compiles COMPILER FLAG ...
    echo 'int main(void) { return 0; }' | "$@" -x c - -o /dev/null 2>/dev/null
}

run=
case $build in
gcc-*)
    compiles "$GCC" -fsanitize=address,undefined || skip "$GCC and its sanitizers (Debian: gcc)"
    ;;
clang-*)
    compiles "$CLANG" -fsanitize=address,undefined || skip "$CLANG and its sanitizers (Debian: clang)"
    ;;
memory-*)
    compiles "$CLANG" -fsanitize=memory || skip "$CLANG with MemorySanitizer (Debian: clang)"
    ;;
memcheck-*)
    command -v valgrind >/dev/null || skip "valgrind"
    run='valgrind -q --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite'
    ;;
esac
case $build in
*-avx2)
    grep -q avx2 /proc/cpuinfo 2>/dev/null || skip "a processor with AVX2"
    ;;
esac

programs=
for test in "$@"; do
    programs="$programs $B/sanitize/$build/$test"
done
# shellcheck disable=SC2086
"${MAKE:-make}" -s -j2 $programs || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in $programs; do
    start=$(date +%s)
    if ! $run "$program" >"$log" 2>&1; then
        cat "$log"
        echo "$program fails"
        exit 1
    fi
    grep '^SKIP' "$log"
    echo "$program: $(($(date +%s) - start)) s"
done
