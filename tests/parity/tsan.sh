#!/bin/sh
# ThreadSanitizer: tsan.sh gcc|clang parity|examples
#
# parity: tests/parity/threads.c, which compares with the bits of one thread; examples: the pool of
# examples/threads.c. The static data of the header is looked at by tests/compile/symbols.sh.
. tests/common.sh
case $1 in
gcc) compiler=${GCC:-gcc} ;;
*) compiler=${CLANG:-clang} ;;
esac
flags='-std=c99 -O1 -g -march=native -fsanitize=thread -Iinclude'
# shellcheck disable=SC2086
if ! echo 'int main(void) { return 0; }' |
    "$compiler" $flags -x c - -o /dev/null -pthread 2>/dev/null; then
    echo "SKIP: tsan/$1/$2 needs $compiler with ThreadSanitizer (Debian: make tools)"
    exit 77
fi
program=$B/tsan-$1-$2
case $2 in
parity)
    "$compiler" $flags -Itests/support -o "$program" tests/parity/threads.c -pthread -lm &&
        TSAN_OPTIONS=halt_on_error=1 "$program"
    ;;
examples)
    "$compiler" $flags -Iexamples -o "$program" examples/threads.c -pthread -lm &&
        export TSAN_OPTIONS=halt_on_error=1 &&
        "$program" --threads 4 --length 4096 &&
        "$program" --threads 3 --length 14000 --kv-heads 1 &&
        "$program" --threads 4 --length 13000 --kv-heads 2 --per-layer
    ;;
esac
