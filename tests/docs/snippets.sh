#!/bin/sh
# Compiles the fenced c blocks of README.md and docs/*.md, and runs those that are programs, so that
# no document shows code that doesn't build. What the fence says decides:
#
#   ```c            a program, which must return 0, or code at file scope, which must compile. With
#                   an #include it must do so as it stands; without one, snapkv.h and the standard
#                   headers are put in front.
#   ```c NAME       code at file scope that tests/docs/snippets/NAME.c includes as "NAME.h" and
#                   runs on small data; that file must exist, and return 0.
#   ```c excerpt    lines out of a larger whole: not compiled.
#
# BASE holds the project's warnings and include path, CC the compiler.
set -u
cd "$(dirname "$0")/../.." || exit 1
cc=${CC:-cc}
base=${BASE:--std=c99 -Wall -Wextra -pedantic -Iinclude}
out=build/snippets
rm -rf "$out"
mkdir -p "$out"

# The sanitizer sees what a small program gets away with; not every compiler installation has it.
sanitize='-fsanitize=address'
echo 'int main(void) { return 0; }' >"$out/probe.c"
if ! { $cc $sanitize -o "$out/probe" "$out/probe.c" && "$out/probe"; } >/dev/null 2>&1; then
    echo "SKIP snippets under a sanitizer: $cc can't link it"
    sanitize=
fi
flags="$base -Werror -Wno-unused-function -O0 $sanitize"

# The library is compiled once, and what runs sees its declarations.
$cc $flags -DSNAPKV_API= -x c -c -o "$out/library.o" include/snapkv.h || exit 1

documents=$(ls README.md docs/*.md 2>/dev/null)
awk -v out="$out" -f tests/docs/snippets.awk $documents >"$out/list" || exit 1

status=0
n_code=0
n_run=0
n_excerpt=0
while read -r kind file where; do
    case $kind in
    code)
        n_code=$((n_code + 1))
        $cc $flags -fsyntax-only "$file" || { echo "$where: does not compile"; status=1; }
        continue
        ;;
    program)
        source=$file
        binary=${file%.c}
        ;;
    named)
        name=$(basename "$file" .h)
        source=tests/docs/snippets/$name.c
        binary=$out/$name
        [ -f "$source" ] || { echo "$where: there is no $source"; status=1; continue; }
        ;;
    excerpt)
        n_excerpt=$((n_excerpt + 1))
        continue
        ;;
    esac
    n_run=$((n_run + 1))
    if ! $cc $flags -DSNAPKV_DECLARATIONS_ONLY -I"$out" -o "$binary" "$source" "$out/library.o" \
        -lm; then
        echo "$where: does not compile"
        status=1
    elif ! "$binary" >"$out/output" 2>&1; then
        cat "$out/output"
        echo "$where: fails"
        status=1
    fi
done <"$out/list"

for source in tests/docs/snippets/*.c; do
    [ -f "$source" ] || continue
    name=$(basename "$source" .c)
    [ -f "$out/$name.h" ] || { echo "$source: no document has a snippet \"$name\""; status=1; }
done
echo "$n_run snippets run, $n_code compiled, $n_excerpt excerpts not compiled"
exit $status
