#!/bin/sh
# examples/threads.c: sets side by side, and sets that the threads share, with the bytes of one
# thread; errors are told.
. tests/common.sh
for arguments in '' '--kv-heads 1 --length 30000' '--per-layer --kv-heads 2 --length 14000 --threads 3' \
    '--kv-heads 2 --threads 5 --length 12289' '--kv-heads 1 --length 700'; do
    # shellcheck disable=SC2086
    "$B/threads" $arguments | grep 'the same bytes' >"$B/threads.out" || {
        echo "threads $arguments: other bytes than one thread's"
        exit 1
    }
done
for arguments in '--length 0' '--threads 0' '--kv-heads x' '--per-head'; do
    # shellcheck disable=SC2086
    if "$B/threads" $arguments >"$B/threads.out" 2>&1; then
        echo "threads $arguments: no error"
        exit 1
    fi
    grep -q '^threads: ' "$B/threads.out" || exit 1
done
echo 'five ways of sharing: the same bytes'
