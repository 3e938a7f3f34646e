#!/bin/sh
# The promises about the first pages: one 20-line program stands in examples/quickstart.c, in the
# README and in the header's first 30 lines; the API begins by line 300 and ends by line 500; nothing
# private lacks its prefix; the header and the examples do what they say.
set -u
cd "$(dirname "$0")/../.." || exit 1
h=include/snapkv.h
out=${B:-build}
failed=0
fail() {
    echo "$1"
    failed=1
}

[ "$(wc -l <examples/quickstart.c)" -le 20 ] || fail 'the quick start has more than 20 lines'
sed -n '1,30s/^ \*   //p' $h | head -20 | diff - examples/quickstart.c ||
    fail 'the header does not open with examples/quickstart.c'
awk '/^```/ { inside = !inside; next } inside' README.md >"$out/readme.code"
grep -qFx "$(sed -n 1p examples/quickstart.c)" "$out/readme.code" &&
    awk 'NR == FNR { line[++n] = $0; next } $0 == line[m + 1] { if (++m == n) exit } $0 != line[m] { if (m < n) m = 0 }
         END { exit m != n }' examples/quickstart.c "$out/readme.code" ||
    fail 'the README does not show examples/quickstart.c'

first=$(grep -n '^SNAPKV_API' $h | head -1 | cut -d: -f1)
banner=$(grep -n 'Nothing below is API' $h | cut -d: -f1)
last=$(awk -v end="$banner" 'NR < end && /^SNAPKV_API/ { line = NR } END { print line }' $h)
[ "$first" -le 300 ] || fail "the first public function is at line $first"
[ "$last" -le 500 ] || fail "the last public function is at line $last"
awk 'length > 100 { print FILENAME ":" FNR ": " length " columns"; bad = 1 } END { exit bad }' $h ||
    fail 'lines above 100 columns'

# Every name that the header defines or declares at file scope has a prefix.
printf '#include "snapkv.h"\n' >"$out/all.c"
${CC:-cc} -std=c99 -DSNAPKV_ISA=SNAPKV_ISA_SCALAR -Iinclude -dM -E "$out/all.c" | awk '{ print $2 }' |
    sed 's/(.*//' | sort >"$out/with.txt"
printf '#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n' >"$out/none.c"
${CC:-cc} -std=c99 -dM -E "$out/none.c" | awk '{ print $2 }' | sed 's/(.*//' | sort >"$out/without.txt"
left=$(comm -23 "$out/with.txt" "$out/without.txt" | grep -v '^SNAPKV_')
[ -z "$left" ] || fail "macros left behind: $left"
names=$(sed -n 's/^\(static inline\|SKV_INLINE\|SKV_NOINLINE\|SNAPKV_API\) [^(]*[ *]\([a-z_0-9]*\)(.*/\2/p' $h |
    grep -v '^\(snapkv_\|skv_\)')
[ -z "$names" ] || fail "names without prefix: $names"

"$out/quickstart" >"$out/quickstart.txt" || fail 'the quick start fails'
[ "$(grep -c '^head [0-3]: ok' "$out/quickstart.txt")" = 4 ] || fail 'the quick start is not ok'
"$out/worked_example" >"$out/worked.txt" || fail 'the worked example fails'
grep -q '^original position  *2  *3  *4  *6  *7$' "$out/worked.txt" ||
    fail 'the worked example keeps other positions than docs/algorithm.md'
grep -q '^pooled scores  *0.0656  *0.3015  *0.5359  *0.5226  *0.3128  *0.0523$' "$out/worked.txt" ||
    fail 'the worked example has other scores than docs/algorithm.md'
echo "first public function at line $first, last at line $last of $(wc -l <$h)"
exit $failed
