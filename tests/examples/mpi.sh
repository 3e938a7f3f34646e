#!/bin/sh
# One prompt on 1 to 4 ranks: each run compares itself with one process, bit for bit, and its bytes
# with what it may send and hold. Ranks without a part, a last part of recent positions only, a rank
# whose keys aren't finite, files.
set -u
build=${B:-build}
out=$build/mpi
failed=0

fail() {
    echo "$*"
    failed=1
}

for tool in "${MPICC:-mpicc}" mpirun; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIP: no $tool here (Debian: libopenmpi-dev openmpi-bin)"
        exit 77
    fi
done
make -s "$build/ranks" B="$build" || exit 1
mkdir -p "$out"

ranks() {
    n=$1
    shift
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout 120 mpirun --oversubscribe -n "$n" "$build/ranks" "$@" >"$out/$n.txt" 2>&1
}

# 5000 is less than a part. The last part of 18437 holds recent positions only.
while read -r counts options; do
    for n in $(echo "$counts" | tr , ' '); do
        ranks "$n" $options --collect --verify && grep -q '^one process: the same' "$out/$n.txt" ||
            fail "$n ranks $options: $(tail -3 "$out/$n.txt")"
        grep '^head' "$out/$n.txt" >"$out/heads-$n.txt"
        cmp -s "$out/heads-$n.txt" "$out/heads-${counts%%,*}.txt" ||
            fail "$n ranks $options: not what ${counts%%,*} print"
    done
done <<END
1,2,3,4 --length 40000
1,4 --length 5000 --capacity 300
1,3 --length 18437 --capacity 300 --budget layer --voting max
END

ranks 3 --spoil 1 && fail 'a key that is not finite goes unnoticed'
grep -q 'rank 1: observing: .*NaN' "$out/3.txt" || fail "--spoil 1: $(head -2 "$out/3.txt")"
ranks 3 --length 20000 --write "$out/rows" --collect || fail "--write: $(head -2 "$out/3.txt")"
grep '^head' "$out/3.txt" >"$out/written.txt"
ranks 3 --length 20000 --file "$out/rows" --collect || fail "--file: $(head -2 "$out/3.txt")"
grep '^head' "$out/3.txt" | cmp -s - "$out/written.txt" || fail '--file gives something else'
ranks 2 --length 20000 --file "$out/rows" && fail 'files of another number of ranks are read'
ranks 2 --length 3 && fail 'a prompt below its capacity is taken'
grep -q '^usage: ' "$out/2.txt" || fail "--length 3: $(head -2 "$out/2.txt")"
rm -f "$out"/rows.*
[ $failed -eq 0 ] && echo "1 to 4 ranks: the bits of one process"
exit $failed
