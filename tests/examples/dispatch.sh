#!/bin/sh
# One binary for every machine: all paths that this one can run give the same bits, each can be
# forced or is refused with a reason, an old processor gets the scalar path, and no object but a
# path's own holds its instructions or gives them away.
set -u
build=${B:-build}
dispatch=$build/dispatch
failed=0

fail() {
    echo "$*"
    failed=1
}

"$dispatch" --check || fail 'the paths differ'
"$dispatch" || fail 'no path is taken'
names=$("$dispatch" --nonsense 2>&1 | sed -n 's/^usage: .*--check | \(.*\)\]$/\1/p' | tr -d '|')
[ -n "$names" ] || fail 'the usage names no paths'
for name in $names; do
    if "$dispatch" "$name" >"$build/dispatch.out" 2>&1; then
        grep -q "^path: $name " "$build/dispatch.out" ||
            fail "$name: $(cat "$build/dispatch.out")"
    else
        grep -q "can't run $name\$" "$build/dispatch.out" ||
            fail "$name: $(cat "$build/dispatch.out")"
    fi
done
for arguments in nonsense '' '--check avx2' 'scalar avx2'; do
    set -- $arguments
    [ $# -gt 0 ] || set -- ''
    "$dispatch" "$@" >/dev/null 2>&1 && fail "dispatch $arguments: no error"
done

if command -v nm >/dev/null; then
    for object in "$build"/dispatch_*.o; do
        name=$(basename "$object" .o)
        symbols=$(nm -g --defined-only "$object" | awk '{ print $NF }' | tr -d '\n')
        case $symbols in
        path_"${name#dispatch_}" | _path_"${name#dispatch_}") ;;
        *) fail "$object gives away $symbols" ;;
        esac
    done
else
    echo 'SKIP the symbols of the paths: no nm'
fi

case $(uname -m) in
x86_64)
    if command -v objdump >/dev/null; then
        for object in "$build/dispatch_scalar.o" "$build/dispatch_scalar_fma.o"; do
            objdump -d "$object" | grep -qE '%[yz]mm|vfmadd' && fail "$object: wide instructions"
        done
    else
        echo 'SKIP the instructions of the scalar path: no objdump'
    fi
    if command -v qemu-x86_64 >/dev/null; then
        qemu-x86_64 -cpu Nehalem "$dispatch" 2>/dev/null | tee "$build/dispatch.out" | head -1
        grep -q '^path: scalar ' "$build/dispatch.out" ||
            fail 'an old processor: not the scalar path'
        qemu-x86_64 -cpu Nehalem "$dispatch" avx2 >/dev/null 2>&1 && fail 'an old processor: avx2?'
    else
        echo 'SKIP dispatch on an old processor: no qemu-x86_64'
    fi
    ;;
esac
exit $failed
