#!/bin/sh
# The llama example as a program: what must hold of its output, and an error with a reason for every
# bad argument and file. Small checkpoints and tokenizers are made here, with the weights of the
# recall model for numbers. The bad files are read by a build under the sanitizers, where there is
# one.
set -u
build=${B:-build}
out=$build/llama-check
llama=$build/llama
rm -rf "$out"
mkdir -p "$out"
failed=0
checked=0

fail() { # to stderr: some run inside a substitution
    echo "$*" >&2
    failed=1
}

# The continuation alone, from the compressed cache or from the full one with --full.
text() {
    rm -f "$out/text" "$out/errors" "$out/small" # writing over a file can wait for the disk
    "$llama" "$@" >"$out/text" 2>"$out/errors" || {
        fail "llama $*: $(cat "$out/errors")"
        return
    }
    checked=$((checked + 1))
    sed -e '1,/^---- from the compressed cache/d' -e '/^----$/,$d' "$out/text" >"$out/small"
    [ -s "$out/small" ] ||
        sed -e '1,/^---- from the full cache/d' -e '/^----$/,$d' "$out/text" >"$out/small"
    cat "$out/small"
}

same() { # name, text, text
    [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: \"$2\" and \"$3\""
}

# ---- files ---------------------------------------------------------------------------------------

word() { # a number as 4 bytes, the lowest first
    printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $(($1 & 255)) $(($1 >> 8 & 255)) \
        $(($1 >> 16 & 255)) $(($1 >> 24 & 255)))"
}

header() { # seven numbers
    for number in "$@"; do
        word "$number"
    done
}

floats() { # a count: as many of the recall model's weights, behind its header
    tail -c +29 examples/recall_model.bin | head -c $((4 * $1))
}

# Dim 32, hidden 48, 2 layers, 4 heads, 2 K/V heads, a vocabulary of 267, 128 positions.
text_model() {
    header 32 48 2 4 2 267 128
    floats $((267 * 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48) + 32 + 128 * 8))
}

token() { # bytes, score word
    word "$2"
    word ${#1}
    printf '%s' "$1"
}

one=1065353216 # the bits of 1.0
two=1073741824
tokenizer() {
    word 8
    token '<unk>' 0
    token '<s>' 0
    token '</s>' 0
    byte=0
    while [ $byte -lt 256 ]; do
        token "<0x$(printf %02X $byte)>" 0
        byte=$((byte + 1))
    done
    for piece in ' ' a b c; do
        token "$piece" 0
    done
    token ab $one
    token bc $two
    token ' a' $one
    token abc $one
}

text_model >"$out/model.bin"
tokenizer >"$out/tokenizer.bin"
words='abc abc bca aab cab abc aabbcc zzz abc abc bca abc abc abc bac bca cab'
printf '%s' "$words" >"$out/words.txt"

# ---- facts ---------------------------------------------------------------------------------------

# The text model goes on after the beginning of the unseen text, from both caches; what is left of
# the prompt counts: the last 64 positions alone are clearly further off than the chosen ones.
unseen=examples/text_unseen.txt
text --compare >"$out/continued"
[ "$(wc -w <"$out/continued")" -ge 20 ] || fail "llama: no words: $(cat "$out/continued")"
sed -e '1d' -e '/^---- from the full cache/,$d' "$out/text" >"$out/prompt"
head -c $(($(wc -c <"$out/prompt") - 1)) "$out/prompt" >"$out/small" # a newline follows the prompt
head -c "$(wc -c <"$out/small")" $unseen | cmp -s - "$out/small" ||
    fail 'llama: the prompt is not the beginning of the unseen text'
grep -q '^---- prompt, 1024 tokens' "$out/text" && grep -q 'position 1087, slot 127' "$out/text" ||
    fail 'llama: not 1024 tokens of prompt and 63 from 64 slots'
awk '/KL divergence/ { kl[++n] = $NF } END { exit !(n == 2 && kl[1] > 0 && kl[2] > 1.5 * kl[1]) }' \
    "$out/text" || fail "llama: the divergences: $(grep divergence "$out/text")"
full=$(text --full)
same 'the text, with room for all' "$full" "$(text --capacity 1024)"
same 'the text from another file' "$full" "$(text --full --length 1024 --prompt-file $unseen)"
text --compare --capacity 1024 >/dev/null
[ "$(grep -c 'agrees in 63 of 63 steps, mean KL divergence 0.000000' "$out/text")" = 2 ] ||
    fail 'llama: 1024 of 1024 are not all, as they were selected or as the last ones'
text --compare --in-place >/dev/null
[ "$(grep -c 'KL divergence' "$out/text")" = 1 ] || fail 'llama: in place, what else was compared?'
text --prompt 'And the king said' --steps 8 >/dev/null
grep -q '^And the king said$' "$out/text" || fail 'llama: the prompt does not come back as text'
text --tokens '1 2 3' --length 2 --steps 1 >/dev/null
grep -q '^---- prompt, 2 tokens' "$out/text" || fail 'llama: --length does not cut numbers'

# The recall model answers its prompt, from both caches.
recall=examples/recall_model.bin
"$llama" $recall >"$out/answer" 2>&1 || fail "llama: $(cat "$out/answer")"
[ "$(grep -c '^(right)$' "$out/answer")" = 2 ] || fail 'llama: the recall prompt is not answered'
grep -q 'position 1026, slot 66' "$out/answer" || fail 'llama: the cursor is not where it should be'
grep -q '^cache: 1050624 bytes in full, 67584 compressed' "$out/answer" ||
    fail 'llama: the bytes are not 2 * 2 * 2 * (1024 + 2) * 32 * 4 and those of 64 + 2'

# 12 positions answer where the lists share one budget and the largest vote counts, and they are
# counted: 12 on average, and 2 tokens, for each of the 4 lists.
best='--capacity 12 --recent 4 --voting max --pooling max --budget model'
"$llama" $best $recall >"$out/answer" 2>&1 || fail "llama: $(cat "$out/answer")"
[ "$(grep -c '^(right)$' "$out/answer")" = 2 ] || fail 'llama: 12 positions do not answer'
grep -q '^cache: 1050624 bytes in full, 14336 compressed' "$out/answer" ||
    fail 'llama: the bytes are not 2 * 4 * (12 + 2) * 32 * 4'
grep -q '^next: position 1026, slots [0-9]* to [0-9]*$' "$out/answer" || fail 'llama: not ragged'
# Where no list may keep less than the average, it is the plain way.
for sharing in kv query layer; do
    set -- --steps 20 --capacity 20 --recent 4 --voting max --sharing $sharing $recall
    for budget in layer model; do
        same "$budget, $sharing" "$(text "$@")" "$(text --budget $budget --least 1 "$@")"
        grep -q 'position 1043, slot 39' "$out/text" || fail "budget $budget: the cursor"
    done
done

# A capacity of the prompt's length, and above it: the tokens of the full cache.
full=$(text --full --steps 20 $recall)
for sharing in kv query layer; do
    for capacity in 1024 1025 4000; do
        same "capacity $capacity, $sharing" "$full" \
            "$(text --steps 20 --sharing $sharing --capacity $capacity $recall)"
        grep -q 'position 1043, slot 1043' "$out/text" || fail "capacity $capacity: the cursor"
    done
done
sampled=$(text --full --steps 20 --temperature 1.5 --seed 7 $recall)
same 'sampled' "$sampled" \
    "$(text --steps 20 --capacity 1024 --temperature 1.5 --seed 7 $recall)"
text --compare --steps 20 --capacity 1024 $recall >/dev/null
grep -q 'agrees in 19 of 19' "$out/text" && grep -q 'divergence 0.000000' "$out/text" ||
    fail 'capacity 1024: the distributions are not those of the full cache'
text --compare --steps 20 $recall >/dev/null
grep -q 'divergence 0.0[0-9]*[1-9]' "$out/text" || fail 'capacity 64: no divergence at all?'

# Compression in place and out of place.
for sharing in kv layer; do
    set -- --steps 20 --sharing $sharing --temperature 2 --budget model $recall
    same "in place, a common budget, $sharing" "$(text "$@")" "$(text --in-place "$@")"
    same "in place, $sharing" "$(text --steps 20 --sharing $sharing --temperature 2 $recall)" \
        "$(text --steps 20 --sharing $sharing --temperature 2 --in-place $recall)"
done

# Text, from the command line and from a file.
set -- --tokenizer "$out/tokenizer.bin" --steps 30 "$out/model.bin"
full=$(text --full --prompt "$words" "$@")
same 'text' "$full" "$(text --capacity 1000 --prompt "$words" "$@")"
same 'a prompt in a file' "$full" "$(text --capacity 1000 --prompt-file "$out/words.txt" "$@")"
text --prompt "$words" --capacity 20 --window 4 --kernel 3 --pooling max --compare "$@" >/dev/null
[ "$(sed -n '2p' "$out/text")" = "$words" ] || fail 'the prompt does not come back as text'
text --prompt '' "$@" >/dev/null # the beginning of a text alone

# ---- errors --------------------------------------------------------------------------------------

cc=${CC:-cc}
checker=$llama
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all'
echo 'int main(void) { return 0; }' >"$out/probe.c"
if { $cc $sanitize -o "$out/probe" "$out/probe.c" && "$out/probe"; } >/dev/null 2>&1; then
    checker=$out/llama-sanitized
    # Unoptimised: a sanitizer makes optimising the library slow.
    $cc ${BASE:--std=c99 -Iinclude} -O0 $sanitize -o "$checker" examples/llama.c -lm || exit 1
else
    echo "SKIP bad files under a sanitizer: $cc can't link it"
fi

refused() { # a reason, then the arguments
    reason=$1
    shift
    checked=$((checked + 1))
    rm -f "$out/output" "$out/errors"
    "$checker" "$@" >"$out/output" 2>"$out/errors"
    status=$?
    [ $status = 1 ] || fail "llama $*: status $status: $(cat "$out/errors")"
    grep -q "^llama: .*$reason" "$out/errors" ||
        fail "llama $*: said \"$(head -1 "$out/errors")\", not \"$reason\""
}

model=$out/model.bin
bad=$out/bad.bin
"$checker" --tokenizer "$out/tokenizer.bin" --prompt "$words" --capacity 20 --steps 5 --compare \
    "$model" >"$out/output" 2>&1 || fail "under the sanitizers: $(cat "$out/output")"
for sharing in kv query layer; do
    "$checker" --tokens '1 2 3 4 5 6 7 8 9 10 11 12' --capacity 8 --window 3 --steps 5 --compare \
        --sharing $sharing "$model" >"$out/output" 2>&1 || fail "sanitizers: $(cat "$out/output")"
done
"$checker" --tokens 5 --steps 1 "$model" >"$out/output" 2>&1 ||
    fail "one token: $(cat "$out/output")"

refused 'bad argument or value: --nonsense' --nonsense
refused 'bad argument or value: --steps' --steps
for value in 0 -1 x 1.5 '' 99999999999999999999 2000000; do
    refused 'bad argument or value: --steps' --steps "$value"
done
refused 'bad argument or value: --temperature' --temperature nan
refused 'bad argument or value: --temperature' --temperature -1
refused 'bad argument or value: --pooling' --pooling mean
refused 'bad argument or value: --sharing' --sharing all
refused 'bad argument or value: --voting' --voting mean
refused 'bad argument or value: --budget' --budget kv
refused 'bad argument or value: --least' --least 1.1
refused 'bad argument or value: --recent' --recent -1
refused 'bad argument or value: two' one two
refused 'needs a --tokenizer' --prompt abc "$model"
refused 'one prompt' --prompt abc --tokens '1 2'
refused 'needs a prompt' --tokenizer "$out/tokenizer.bin" "$model"
refused '--in-place needs' --in-place --sharing query
refused 'nothing to compare' --full --compare
refused 'capacity' --tokens '1 2 3 4 5 6' --window 4 --capacity 4
refused 'kernel' --tokens '1 2 3 4 5 6' --kernel 4
refused 'window' --tokens '1 2 3 4 5 6' --window 0
refused 'no token in it' --tokens ' , '
refused 'not a number' --tokens '1 two'
refused 'not in the vocabulary' --tokens '1 512'
refused 'not in the vocabulary' --tokens '1 96' $recall
refused 'bad argument or value: --length' --length 0
refused 'cuts a prompt' --length 5 $recall
refused 'not in the vocabulary' --tokens '99999999999999999999'
refused 'another vocabulary' "$model"
refused "$out/none.txt: can't be opened" --prompt-file "$out/none.txt" --tokenizer \
    "$out/tokenizer.bin" "$model"
refused "$out/none.bin: can't be opened" "$out/none.bin"
refused 'too short' "$out"

# The checkpoint: cut inside each header field and in the weights, too long, nonsense.
size=$(wc -c <"$model")
for n in 0 1 3 4 7 8 12 16 20 24 27; do
    head -c $n "$model" >"$bad"
    refused 'too short' "$bad"
done
for n in 28 29 100 $((size / 2)) $((size - 1)); do
    head -c "$n" "$model" >"$bad"
    refused 'shorter' "$bad"
done
{ cat "$model" && printf x; } >"$bad"
refused 'longer' "$bad"
for field in 1 2 3 4 5 6 7; do
    for value in 0 -2147483648 2147483647; do
        set -- 32 48 2 4 2 267 128
        numbers=
        i=0
        for number in "$@"; do
            i=$((i + 1))
            [ $i = $field ] && number=$value
            numbers="$numbers $number"
        done
        { header $numbers && tail -c +29 "$model"; } >"$bad"
        refused "$bad: " "$bad" --tokens 1
    done
done

# The tokenizer likewise; the unit test does this for every byte.
size=$(wc -c <"$out/tokenizer.bin")
for n in 0 3 4 5 11 12 16 17 100 $((size - 1)); do
    head -c "$n" "$out/tokenizer.bin" >"$bad"
    refused "$bad: .*short" --tokenizer "$bad" --prompt abc "$model"
done
{ cat "$out/tokenizer.bin" && printf x; } >"$bad"
refused 'longer' --tokenizer "$bad" --prompt abc "$model"
refused 'not a tokenizer' --tokenizer "$model" --prompt abc "$model"

# Noise, from a seed: a linear congruential generator's bytes.
for seed in 1 2 3 4 5 6 7 8; do
    awk -v seed=$seed 'BEGIN { for (i = 0; i < 300; i++) {
        seed = (seed * 1103515245 + 12345) % 2147483648
        printf "%02x\n", int(seed / 65536) % 256 } }' | while read -r byte; do
        printf "\\$(printf %03o "0x$byte")"
    done >"$bad"
    refused "$bad: " "$bad"
    refused "$bad: " --tokenizer "$bad" --prompt abc "$model"
done
echo "$checked runs checked"
exit $failed
