#!/bin/sh
# The same bits on every path, compiler and language: builds digest.c each way, runs it, and compares
# what it prints. A path that this machine can't build or run says SKIP. Without FULL, each path once
# a compiler, and one C++ compiler.
set -u
. tests/common.sh
out=$B/parity
mkdir -p "$out"
source=tests/parity/digest.c
warn='-Wall -Wextra -Wno-psabi -Iinclude'
failed=0
same=0

# check NAME RUNNER COMPILER FLAGS...: builds, runs, compares with the first digest.
check() {
    name=$(echo "$1" | tr / _)
    runner=$2
    shift 2
    if ! has "$1"; then
        echo "SKIP: $name: no $1 here"
        return
    fi
    if [ "$runner" = no ]; then
        echo "SKIP: $name: this processor does not have it"
        return
    fi
    if [ -n "$runner" ] && ! has "$runner"; then
        echo "SKIP: $name: no $runner here"
        return
    fi
    if ! "$@" $warn -o "$out/$name" $source -lm 2>"$out/$name.log"; then
        echo "FAIL: $name does not build"
        cat "$out/$name.log"
        failed=1
        return
    fi
    $runner "$out/$name" >"$out/$name.txt" 2>&1
    status=$?
    if [ ! -f "$out/reference.txt" ]; then
        cp "$out/$name.txt" "$out/reference.txt"
    fi
    if [ $status -eq 0 ] && cmp -s "$out/$name.txt" "$out/reference.txt"; then
        echo "same bits: $name"
        same=$((same + 1))
    else
        echo "FAIL: $name (status $status) differs from the first:"
        diff "$out/reference.txt" "$out/$name.txt" | head -6
        failed=1
    fi
}

rm -f "$out"/*.txt
cat > "$out/simde.c" <<'END'
#include <simde/x86/avx512.h>
int main(void) { return 0; }
END

fma=
! cpu_has fma || fma=-mfma
fused="$scalar -DSNAPKV_SCALAR_FMA=1"
avx2="-mavx2 -mfma -mf16c" # chosen by the header
avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl $avx2"
run2=no
run512=no
! path_runs avx2 || run2=
! path_runs avx512 || run512=
for cc in $c_compilers; do
    check $cc-scalar-O3 "" $cc -std=c99 -O3 $fma $fused
    ! full || check $cc-scalar-O0 "" $cc -std=c99 -O0 $fma $fused
    ! full || check $cc-scalar-gnu17-contract "" $cc -std=gnu17 -O2 -ffp-contract=fast $fma $fused
    case $(uname -m) in
    x86_64)
        check $cc-avx2-O3-contract "$run2" $cc -std=gnu17 -O3 -ffp-contract=fast $avx2
        check $cc-avx512-O2 "$run512" $cc -std=c99 -O2 $avx512
        full || continue
        check $cc-avx2-O2 "$run2" $cc -std=c99 -O2 $avx2
        check $cc-avx2-O1-off "$run2" $cc -std=c11 -O1 -ffp-contract=off $avx2
        check $cc-avx2-Os "$run2" $cc -std=c99 -Os $avx2
        check $cc-avx512-O3-contract "$run512" $cc -std=gnu17 -O3 -ffp-contract=fast $avx512
        ;;
    *) check $cc-default "" $cc -std=gnu17 -O3 -ffp-contract=fast ;;
    esac
done
full || cxx_compilers=$(echo "$cxx_compilers" | head -n 1)
for cxx in $cxx_compilers; do
    check $cxx-scalar-C++11 "" $cxx -x c++ -std=c++11 -O2 $fma $fused
    full && [ "$(uname -m)" = x86_64 ] || continue
    check $cxx-avx2-C++17 "$run2" $cxx -x c++ -std=c++17 -O2 -ffp-contract=fast $avx2
done
if [ "$(uname -m)" = x86_64 ]; then
    # The AVX-512 block in plain C, for a processor that has no AVX-512 to run it on.
    if ! gcc -w -fsyntax-only "$out/simde.c" 2>/dev/null; then
        skip 'gcc-avx512-emulated: no SIMDe here (Debian: make tools)'
    elif full || [ -n "$run512" ]; then
        check gcc-avx512-emulated "" gcc -std=gnu11 -O2 -w $fma -Itests/parity/emulated \
            -D__AVX512F__ -D__AVX512BW__ -D__AVX512DQ__ -D__AVX512VL__
    fi
    check aarch64-neon qemu-aarch64 aarch64-linux-gnu-gcc -std=c99 -O2 -static
    if full; then
        check aarch64-neon-contract qemu-aarch64 aarch64-linux-gnu-gcc -std=gnu17 -O3 -static \
            -ffp-contract=fast
        check aarch64-scalar qemu-aarch64 aarch64-linux-gnu-gcc -std=c99 -O3 -static $fused
    fi
fi
if [ $same -lt 2 ] && [ $failed -eq 0 ]; then
    echo 'FAIL: no two builds to compare'
    exit 1
fi
echo "$same builds print the same $(grep -c . "$out/reference.txt") lines"
exit $failed
