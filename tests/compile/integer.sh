#!/bin/sh
# clang's -fsanitize=integer, which also stops at unsigned numbers that wrap around: where the library
# means to, it says so (SKV_WRAPS), so that a program which is built with it runs on. The quick start
# by each path; the unit tests by integer-native and integer-scalar.
set -u
. tests/common.sh
out=$B/integer
mkdir -p "$out"
flags='-std=c99 -O1 -g -Iinclude -fsanitize=integer -fno-sanitize-recover=all'
clang=${CLANG:-clang}
if ! echo 'int main(void) { return 0; }' | $clang $flags -x c - -o /dev/null 2>/dev/null; then
    skip "no $clang with -fsanitize=integer (Debian: make tools)"
    exit 77
fi
ran=
for path in $paths; do
    if ! path_runs $path; then
        skip "$path: this processor does not have it"
        continue
    fi
    $clang $flags $(path_flags $path) -o "$out/quickstart" examples/quickstart.c -lm &&
        "$out/quickstart" >"$out/log" 2>&1 || {
        echo "FAIL: quickstart, $path"
        tail -n 5 "$out/log"
        exit 1
    }
    ran="$ran $path"
done
echo "the quick start runs on:$ran"
