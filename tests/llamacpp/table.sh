#!/bin/sh
# What docs/llamacpp.md shows: speed and memory before and after: table.sh [PROMPT LENGTH ...]
#
# Four layers of dimension 1024, 16 query heads on 8 K/V heads of 64, hidden 3072, random weights in
# f16: what a layer costs does not depend on what it has learnt. One thread; both caches decode the
# same 32 tokens in turn, in one process. Five minutes.
set -u
. tests/llamacpp/library.sh
build snapkv-llama
model=$files/layers.gguf
[ -e "$model" ] || examples/llamacpp/to_gguf.py random "$model" --head-dim 64 --heads 16 \
    --kv-heads 8 --layers 4 --hidden 3072 --f16 || exit 1
[ $# -gt 0 ] || set -- 4096 8192
echo '| prompt | kept | cache | flash | MiB before | after | prefill, s | selection, s | tokens/s before | after | times |'
echo '|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|'
for length in "$@"; do
    seq 100000 | tr -d '\n' | head -c "$length" >"$files/digits" # a token a byte
    for type in f16 q8_0; do
        for flash in on off; do
            $run "$folder/snapkv-llama" -m "$model" -f "$files/digits" -n 32 --capacity 512 \
                --cache-type $type --flash $flash --threads 1 \
                --compare ${backends:+--backends "$backends"} >/dev/null 2>"$files/said" || {
                cat "$files/said"
                exit 1
            }
            tr '\r' '\n' <"$files/said" | awk -v type=$type -v flash=$flash '
                /^prompt:/ { length_ = $2; kept = $4 }
                /^cache, MiB:/ { before = $3; after = $5 }
                /^seconds:/ { prefill = $2; selection = $4 }
                /^full cache:/ { full = $3; small = $6 + 0; times = $7 }
                END { printf "| %d | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", length_,
                      kept, type, flash, before, after, prefill, selection, full, small, times }'
        done
    done
done
