#!/bin/sh
# The promises about the first pages: one program stands in examples/quickstart.c, in the README and
# in the header's first 30 lines, is C99 and C++11 without a warning, and fails where its policy is
# refused; the API begins by line 330 and ends by line 620; nothing private lacks its prefix; prose
# and the Makefile wrap at 100 columns; the examples do what they say.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/common.sh
h=include/snapkv.h
out=$B
failed=0
fail() {
    echo "$*"
    failed=1
}

sed -n '1,30s/^ \*   //p' $h | diff - examples/quickstart.c ||
    fail 'the header does not open with examples/quickstart.c'
awk '/^```/ { inside = !inside; next } inside' README.md >"$out/readme.code"
grep -qFx "$(sed -n 1p examples/quickstart.c)" "$out/readme.code" &&
    awk 'NR == FNR { line[++n] = $0; next } $0 == line[m + 1] { if (++m == n) exit } $0 != line[m] { if (m < n) m = 0 }
         END { exit m != n }' examples/quickstart.c "$out/readme.code" ||
    fail 'the README does not show examples/quickstart.c'

first=$(grep -n '^SNAPKV_API' $h | head -1 | cut -d: -f1)
banner=$(grep -n 'Nothing below is API' $h | cut -d: -f1)
last=$(awk -v end="$banner" 'NR < end && /^SNAPKV_API/ { line = NR } END { print line }' $h)
[ "$first" -le 330 ] || fail "the first public function is at line $first"
[ "$last" -le 620 ] || fail "the last public function is at line $last"
missing=$(sed -n "1,${banner}s/^SNAPKV_API .*[ *]\(snapkv_[a-z_0-9]*\)(.*/\1/p" $h |
    while read -r name; do grep -q "\`$name\`" README.md || echo "$name"; done)
[ -z "$missing" ] || fail "the README's table lacks" $missing
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

# Tables and pictures can't be wrapped.
awk 'length > 100 && (FILENAME == "Makefile" || !/^[|!]/) {
         print FILENAME ":" FNR ": " length " columns"; bad = 1 }
     END { exit bad }' Makefile README.md docs/*.md tests/*.md tests/*/README.md ||
    fail 'documents or the Makefile above 100 columns'

# As C and as C++, whose compilers warn of other things; then what it prints, and that it can fail.
for compiler in $c_compilers; do
    $compiler -std=c99 -Wall -Wextra -pedantic -Werror -Iinclude -fsyntax-only \
        examples/quickstart.c || fail "$compiler -std=c99 warns of the quick start"
done
for compiler in $cxx_compilers; do
    for standard in c++11 c++20; do
        $compiler -std=$standard -x c++ -Wall -Wextra -pedantic -Werror -Iinclude -fsyntax-only \
            examples/quickstart.c || fail "$compiler -std=$standard warns of the quick start"
    done
done
"$out/quickstart" >"$out/quickstart.txt" || fail 'the quick start fails'
echo 'ok: the next token goes to position 8192, slot 2048' | diff - "$out/quickstart.txt" ||
    fail 'the quick start prints something else'
sed 's/default_config();/& config.kernel_size = 4;/' examples/quickstart.c >"$out/refused.c"
$CC -std=c99 -O1 -Iinclude -o "$out/refused" "$out/refused.c" -lm &&
    ! "$out/refused" >"$out/quickstart.txt" && grep -q 'position 0, slot 0$' "$out/quickstart.txt" ||
    fail 'the quick start with an even kernel does not fail'
"$out/worked_example" >"$out/worked.txt" || fail 'the worked example fails'
grep -q '^original position  *2  *3  *4  *6  *7$' "$out/worked.txt" ||
    fail 'the worked example keeps other positions than docs/algorithm.md'
grep -q '^pooled scores  *0.0656  *0.3015  *0.5359  *0.5226  *0.3128  *0.0523$' "$out/worked.txt" ||
    fail 'the worked example has other scores than docs/algorithm.md'
echo "first public function at line $first, last at line $last of $(wc -l <$h)"
exit $failed
