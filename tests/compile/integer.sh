#!/bin/sh
# clang's -fsanitize=integer, which also stops at unsigned numbers that wrap around: the library,
# where it means to, says so (SKV_WRAPS), so that a program built with it runs on. Runs the quick
# start and the vectors.
set -u
. tests/common.sh
out=$B/integer
mkdir -p "$out"
clang=${CLANG:-clang}
flags='-std=c99 -O1 -g -Iinclude -Iexamples -fsanitize=integer -fno-sanitize-recover=all'
if ! echo 'int main(void) { return 0; }' | $clang $flags -x c - -o /dev/null 2>/dev/null; then
    skip "no $clang with -fsanitize=integer (Debian: make tools)"
    exit 77
fi
for path in $some_paths; do
    path_runs $path || {
        skip "$path: this processor does not have it"
        continue
    }
    $clang $flags $(path_flags $path) -o "$out/quickstart" examples/quickstart.c -lm &&
        "$out/quickstart" >"$out/log" 2>&1 || {
        echo "FAIL: quickstart, $path"
        tail -5 "$out/log"
        exit 1
    }
    # Only the library is watched: what draws the inputs wraps around.
    $clang $flags $(path_flags $path) -c -o "$out/subject.o" tests/compile/subject.c &&
        $clang -std=c99 -O1 -Iinclude -c -o "$out/cases.o" tests/compile/cases.c &&
        $clang $flags -o "$out/cases" "$out/subject.o" "$out/cases.o" -lm &&
        "$out/cases" >"$out/log" 2>&1 || {
        echo "FAIL: cases, $path"
        tail -5 "$out/log"
        exit 1
    }
    echo "$path: $(tail -n 1 "$out/log")"
done
