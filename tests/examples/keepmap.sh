#!/bin/sh
# The picture of what is kept: the committed one can be printed again, a picture from a file of
# votes is the picture from the model they came from, odd shapes give a well-formed file, and bad
# input an error with a reason. Under the sanitizers, where there are any.
set -u
build=${B:-build}
out=$build/keepmap-check
keepmap=$build/keepmap
rm -rf "$out"
mkdir -p "$out"
failed=0
checked=0

fail() {
    echo "$*"
    failed=1
}

cc=${CC:-cc}
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all'
echo 'int main(void) { return 0; }' >"$out/probe.c"
if { $cc $sanitize -o "$out/probe" "$out/probe.c" && "$out/probe"; } >/dev/null 2>&1; then
    $cc ${BASE:--std=c99 -Iinclude} -O0 $sanitize -o "$out/keepmap" examples/keepmap.c -lm || exit 1
else
    echo "SKIP keepmap under a sanitizer: $cc can't link it"
    cp "$keepmap" "$out/keepmap"
fi

draws=$out/keepmap
drawn() { # arguments: it must draw, and what it draws must be XML
    checked=$((checked + 1))
    rm -f "$out/map.svg" "$out/output" # writing over a file can wait for the disk
    "$draws" --svg "$out/map.svg" "$@" >"$out/output" 2>&1 || {
        fail "keepmap $*: $(cat "$out/output")"
        return
    }
    # Every element is closed on its own line, and no < or & stands in a text.
    sed 's/&#[0-9]*;//g' "$out/map.svg" | awk '
        /&/ { exit 1 }
        NR == 1 && !/^<svg [^<>]*>$/ { exit 1 }
        NR > 1 && !/^<(rect|path) [^<>]*\/>$/ && !/^<text [^<>]*>[^<>]*<\/text>$/ &&
            !/^<\/svg>$/ { exit 1 }
        { last = $0 }
        END { exit last != "</svg>" }' || fail "keepmap $*: not well-formed: $out/map.svg"
    if grep -qiE '[" ](nan|inf|-nan|-inf)[" ]' "$out/map.svg"; then
        fail "keepmap $*: a coordinate is no number"
    fi
}

refused() { # a reason, then the arguments
    reason=$1
    shift
    checked=$((checked + 1))
    rm -f "$out/output" "$out/errors"
    "$out/keepmap" --svg "$out/never.svg" "$@" >"$out/output" 2>"$out/errors"
    status=$?
    [ $status = 1 ] || fail "keepmap $*: status $status: $(cat "$out/errors")"
    grep -q "^keepmap: .*$reason" "$out/errors" ||
        fail "keepmap $*: said \"$(head -1 "$out/errors")\", not \"$reason\""
    [ ! -e "$out/never.svg" ] || fail "keepmap $*: a picture in spite of the error"
    rm -f "$out/never.svg"
}

# ---- pictures ------------------------------------------------------------------------------------

# Rounding may move a vote over the border of a shade: a line for each.
"$keepmap" --svg "$out/again.svg" >"$out/output" 2>&1 || fail "$(cat "$out/output")"
n=$(diff docs/keepmap.svg "$out/again.svg" | grep -c '^>')
[ "$n" -le 4 ] || fail "docs/keepmap.svg: $n lines are drawn otherwise now; make pictures writes it"

drawn --dump "$out/votes.txt"
places() { # without them: only the model's layers stand apart
    sed -e 's/ y="[^"]*"//' -e 's/translate([^)]*)//' "$out/map.svg" |
        grep -vE 'ffffff|#888888|^<svg'
}
places >"$out/model.txt"
drawn "$out/votes.txt"
places | grep -vxFf "$out/model.txt" && fail 'the votes that were written give another picture'

drawn --window 20 --capacity 24
drawn --capacity 1024 --pooling max "$out/votes.txt"
drawn --capacity 5000 --kernel 1 "$out/votes.txt"
drawn --capacity 17 "$out/votes.txt"
draws=$keepmap # a prompt each, a second under the sanitizers
drawn --seed 7 --capacity 17
drawn --window 1000 --capacity 1010
drawn --window 1023 --capacity 1024
draws=$out/keepmap
{
    echo '# a comment'
    echo
    echo 'one & <only>: 1,0 0.5	2e-1'
    echo '0 0 0 0'
} >"$out/small.txt"
drawn --capacity 18 "$out/small.txt"
grep -q 'one &#38; &#60;only&#62;' "$out/map.svg" || fail 'a label is not escaped'
grep -q '18 of 20 positions of each head' "$out/map.svg" || fail 'the counts of a small file'
echo 3 >"$out/one.txt"
drawn --capacity 17 "$out/one.txt"
awk 'BEGIN { for (i = 0; i < 50000; i++) printf "%s ", i % 1000 ? "0.0001" : "0.1"; print "" }' \
    >"$out/long.txt"
drawn --capacity 500 "$out/long.txt"
awk 'BEGIN { for (h = 0; h < 128; h++) print h % 3, 1, 0, 2, 0.5 }' >"$out/tall.txt"
drawn --capacity 18 "$out/tall.txt"

# ---- errors --------------------------------------------------------------------------------------

refused 'bad argument or value: --nonsense' --nonsense
refused 'bad argument or value: --capacity' --capacity
refused 'bad argument or value: --capacity' --capacity 1e9
refused 'bad argument or value: --pooling' --pooling sum
refused 'bad argument or value: two' one two
refused 'capacity' --capacity 16
refused 'window' --window 0
refused 'window' --window 1024 --capacity 2000
refused 'kernel' --kernel 2
refused "can't be opened" "$out/none.txt"
refused "can't be" "$out"
refused "can't be opened" --model "$out/none.bin"
refused 'checkpoint' --model "$out/votes.txt"
refused "can't be written" --dump "$out/none/votes.txt"
"$out/keepmap" --svg "$out/none/map.svg" >"$out/output" 2>&1 &&
    fail 'no error for a missing directory'

refused_text() { # a reason, then the file's text
    rm -f "$out/bad.txt"
    printf '%b' "$2" >"$out/bad.txt"
    refused "bad.txt: $1" --capacity 18 "$out/bad.txt"
}
refused_text 'no votes in it' ''
refused_text 'no votes in it' '# nothing\n\n'
refused_text 'line 1: no votes' 'a label:\n'
refused_text 'line 2: fewer' '1 2 3\n1 2\n'
refused_text 'line 3: more' '1 2 3\n\n1 2 3 4\n'
refused_text 'line 1: something in it is not a number' '1 two 3\n'
refused_text 'line 1: something in it is not a number' '1 2x 3\n'
refused_text 'line 1: a vote is negative' '1 -2 3\n'
refused_text 'line 1: a vote is negative' '1 nan 3\n'
refused_text 'line 1: a vote is negative' '1 inf 3\n'
refused_text 'line 1: a vote is negative' '1 17 3\n'
refused_text 'line 1: the votes sum' '10 10\n'
refused_text 'line 1: a label' 'h\0303\0244: 1\n'
refused_text 'not a text file' '1 2\00003 4\n'
awk 'BEGIN { for (h = 0; h < 129; h++) print 1, 2 }' >"$out/bad.txt"
refused 'line 129: more heads' --capacity 17 "$out/bad.txt"
head -c 3000 examples/recall_model.bin >"$out/bad.txt"
refused 'bad.txt' "$out/bad.txt"
echo "$checked runs checked"
exit $failed
