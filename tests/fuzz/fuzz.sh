#!/bin/sh
# Runs a fuzz target for $FUZZ_SECONDS (5): fuzz.sh layer|cursor|state native|scalar [keep]
#
# It starts from tests/fuzz/corpus/TARGET, an input in base64 a line. `keep` writes there the
# smallest inputs that reach all that was reached. An input that fails is printed in base64, and
# lies in build/fuzz/.
set -e
target=$1
isa=$2
seconds=${FUZZ_SECONDS:-5}
keep=$3
: "${B:=build}"
: "${CLANG:=clang}"
mkdir -p "$B"

if ! echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9; }' |
    "$CLANG" -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null; then
    echo "SKIP: fuzz/$target/$isa needs $CLANG with libFuzzer (Debian: make tools)"
    exit 77
fi
program=$B/fuzz/$isa/fuzz_$target
# Targets that run side by side share objects.
lock=
! command -v flock >/dev/null || lock="flock $B/fuzz.lock"
$lock "${MAKE:-make}" -s "B=$B" "$program"

inputs=$(mktemp -d)
trap 'rm -rf "$inputs"' EXIT
mkdir "$inputs/all" "$inputs/few"
n=0
while read -r line; do
    n=$((n + 1))
    echo "$line" | base64 -d >"$inputs/all/$n"
done <"tests/fuzz/corpus/$target"

# An input takes milliseconds; a busy machine may stop for a minute, which is no hang.
status=0
"$program" -max_len=600 -max_total_time="$seconds" -timeout=100 -rss_limit_mb=2048 \
    -artifact_prefix="$B/fuzz/" -print_final_stats=1 "$inputs/all" >"$inputs/log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
    grep -v '^#.*\(NEW\|REDUCE\|pulse\)' "$inputs/log"
    exit 1
fi
echo "$target, $isa: $(sed -n 's/^stat::number_of_executed_units: *//p' "$inputs/log") inputs in" \
    "$seconds s," "$(sed -n 's/^#.* cov: \([0-9]*\).*/\1/p' "$inputs/log" | tail -1) branches" \
    "reached, none fails"

if [ "$keep" = keep ]; then
    "$program" -merge=1 -use_counters=0 -max_len=600 "$inputs/few" "$inputs/all" 2>/dev/null
    for file in "$inputs/few"/*; do
        base64 -w 0 "$file"
        echo
    done | LC_ALL=C sort >"tests/fuzz/corpus/$target"
fi
