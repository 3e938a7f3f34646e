#!/bin/sh
# vectors.txt must be what the scalar path with fused multiply-add gives today.
set -e
${B:-build}/make_vectors >"${B:-build}/vectors.txt"
if ! cmp "${B:-build}/vectors.txt" tests/vectors/vectors.txt; then
    diff "${B:-build}/vectors.txt" tests/vectors/vectors.txt | cut -c1-160 | head -8
    echo "the vectors drifted: a change of bits is a new contract (make vectors writes them anew)"
    exit 1
fi
echo "$(grep -c '^case' tests/vectors/vectors.txt) cases, $(wc -c <tests/vectors/vectors.txt) bytes"
