#!/bin/sh
# SnapKV on llama.cpp: the tool and what it is made of, with an installed library, with that of
# $LLAMA (a folder), or with Debian's, fetched into build/.
set -u
. tests/llamacpp/library.sh
build snapkv-llama test_llamacpp
rm -f "$folder"/files/*

gguf=examples/llamacpp/to_gguf.py
"$gguf" recall "$files/recall.gguf" &&
    "$gguf" random "$files/random-64.gguf" --head-dim 64 &&
    "$gguf" random "$files/random-128.gguf" --head-dim 128 &&
    "$gguf" random "$files/sliding.gguf" --arch gemma3 &&
    "$gguf" random "$files/longrope.gguf" --arch longrope &&
    "$gguf" random "$files/mrope.gguf" --arch qwen2vl || exit 1

failed=0
fail() {
    echo "$*"
    failed=1
}

# ---- the tool --------------------------------------------------------------------------------------

tool() { # ARGUMENT ...: its text; what it says beside it goes to $files/said
    set -- -m "$files/recall.gguf" --window 16 --threads 1 ${backends:+--backends "$backends"} "$@"
    $run "$folder/snapkv-llama" "$@" 2>"$files/said"
}

refused() { # REASON ARGUMENT ...
    reason=$1
    shift
    text=$(tool "$@") && fail "$*: not refused"
    [ -z "$text" ] || fail "$*: refused, yet it prints $text"
    grep -q -e "$reason" "$files/said" || fail "$*: no word of '$reason': $(cat "$files/said")"
}

n=0
for seed in 1 2 3 4 5; do
    "$gguf" prompt --seed $seed >"$files/prompt" 2>"$files/right"
    for more in '--flash on' '--flash off' '--cache-type q8_0' '--cache-type f32 --ubatch 100'; do
        text=$(tool -f "$files/prompt" -n 3 --capacity 64 --compare $more)
        [ "$text" = "$(cat "$files/right") " ] ||
            fail "prompt $seed, $more: '$text' for '$(cat "$files/right")': $(cat "$files/said")"
        n=$((n + 1))
    done
done
grep -q '1024 tokens, 64 kept' "$files/said" && grep -q 'full cache: .* mean KL' "$files/said" ||
    fail "no report: $(cat "$files/said")"

# A document is read once, then asked twice; everything is kept, for its end asks nothing.
cut_at=$(($(wc -c <"$files/prompt") - $(grep -o '? k[0-9]* $' "$files/prompt" | wc -c) + 1))
head -c "$cut_at" "$files/prompt" >"$files/document"
tail -c "+$((cut_at + 1))" "$files/prompt" >"$files/question"
tool -f "$files/document" -n 1 --capacity 2000 --save "$files/saved" >"$files/text" ||
    fail "--save: $(cat "$files/said")"
for again in 1 2; do
    text=$(tool -f "$files/question" -n 3 --load "$files/saved")
    [ "$text" = "$(cat "$files/right") " ] || fail "--load: '$text': $(cat "$files/said")"
done
head -c 100000 "$files/saved" >"$files/cut"
refused 'cut or too long' -f "$files/question" --load "$files/cut"
(cat "$files/saved" && echo) >"$files/long"
refused 'cut or too long' -f "$files/question" --load "$files/long"
refused 'not one that --save has written' -f "$files/question" --load "$files/prompt"
refused 'another model' -f "$files/question" --load "$files/saved" -m "$files/random-64.gguf"
refused 'to load can.t be opened' -f "$files/question" --load "$files/none"
refused 'to save to can.t be opened' -f "$files/prompt" --save "$files/none/saved"
ls "$files" | grep -q part && fail "a part of a file was left behind"

refused 'sliding window' -f "$files/prompt" -m "$files/sliding.gguf"
refused 'LongRoPE' -f "$files/prompt" -m "$files/longrope.gguf"
refused 'M-RoPE' -f "$files/prompt" -m "$files/mrope.gguf"
refused "model can't be loaded" -f "$files/prompt" -m "$files/prompt"
refused "can't be opened" -f "$files/none"
refused 'config.kernel_size: even' -f "$files/prompt" --kernel 4 --capacity 64
refused 'config.capacity' -f "$files/prompt" --capacity 16
refused 'config.window' -f "$files/prompt" --window 0
for bad in '--capacity' '--capacity x' '--capacity -1' '--flash maybe' '--sharing query' '--what'; do
    refused "bad argument or missing value: ${bad%% *}" -f "$files/prompt" $bad
done
refused 'bad argument or missing value: -f' -n 3

# ---- what it is made of ----------------------------------------------------------------------------

BACKENDS=$backends $run "$folder/test_llamacpp" "$files" >"$files/log" 2>&1 ||
    fail "$(grep -v -e '^prefill' -e '^.prefill' "$files/log")"
grep -e '^recall, ' -e '^q8_0, ' "$files/log"
[ $failed -eq 0 ] && echo "$n answers of the tool and $(grep -c ' OK ' "$files/log") tests, with libllama" \
    "$(sed -n "s,^libllama ,,p" "$files/log")"
exit $failed
