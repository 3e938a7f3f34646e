#!/bin/sh
# The same bits on every path, compiler and language: builds digest.c each way, runs it, and compares
# what it prints. A path that this machine can't build or run says SKIP.
set -u
out=${B:-build}/parity
mkdir -p "$out"
source=tests/parity/digest.c
warn='-Wall -Wextra -Wno-psabi -Iinclude'
failed=0
same=0

has() { command -v "$1" >/dev/null 2>&1; }
cpu_has() { grep -qw "$1" /proc/cpuinfo 2>/dev/null; }

# check NAME RUNNER COMPILER FLAGS...: builds, runs, compares with the first digest.
check() {
    name=$1
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

scalar='-DSNAPKV_ISA=SNAPKV_ISA_SCALAR -DSNAPKV_SCALAR_FMA=1'
case $(uname -m) in
x86_64)
    fma=
    cpu_has fma && fma=-mfma
    avx2='-mavx2 -mfma -mf16c'
    avx512='-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c'
    run2=no
    cpu_has avx2 && cpu_has f16c && run2=
    run512=no
    cpu_has avx512dq && cpu_has avx512bw && cpu_has avx512vl && run512=
    for cc in gcc clang; do
        check $cc-scalar-O3 "" $cc -std=c99 -O3 $fma $scalar
        check $cc-scalar-O0 "" $cc -std=c99 -O0 $fma $scalar
        check $cc-scalar-gnu17-contract "" $cc -std=gnu17 -O2 -ffp-contract=fast $fma $scalar
        check $cc-avx2-O2 "$run2" $cc -std=c99 -O2 $avx2
        check $cc-avx2-O3-contract "$run2" $cc -std=gnu17 -O3 -ffp-contract=fast $avx2
        check $cc-avx2-O1-off "$run2" $cc -std=c11 -O1 -ffp-contract=off $avx2
        check $cc-avx2-Os "$run2" $cc -std=c99 -Os $avx2
        check $cc-avx512-O2 "$run512" $cc -std=c99 -O2 $avx512
        check $cc-avx512-O3-contract "$run512" $cc -std=gnu17 -O3 -ffp-contract=fast $avx512
    done
    for cxx in g++ clang++; do
        check $cxx-scalar "" $cxx -x c++ -std=c++11 -O2 $fma $scalar
        check $cxx-avx2 "$run2" $cxx -x c++ -std=c++17 -O2 -ffp-contract=fast $avx2
    done
    # The AVX-512 block in plain C, where the processor has no AVX-512 to run it on.
    if gcc -w -fsyntax-only "$out/simde.c" 2>/dev/null; then
        check gcc-avx512-emulated "" gcc -std=gnu11 -O2 -w $fma -Itests/parity/emulated \
            -D__AVX512F__ -D__AVX512BW__ -D__AVX512DQ__ -D__AVX512VL__
    else
        echo "SKIP: gcc-avx512-emulated: no SIMDe here (Debian: libsimde-dev)"
    fi
    check aarch64-neon qemu-aarch64 aarch64-linux-gnu-gcc -std=c99 -O2 -static
    check aarch64-neon-contract qemu-aarch64 aarch64-linux-gnu-gcc -std=gnu17 -O3 -static \
        -ffp-contract=fast
    check aarch64-scalar qemu-aarch64 aarch64-linux-gnu-gcc -std=c99 -O3 -static $scalar
    ;;
*)
    for cc in gcc clang; do
        check $cc-scalar-O3 "" $cc -std=c99 -O3 $scalar
        check $cc-scalar-O0 "" $cc -std=c99 -O0 $scalar
        check $cc-default "" $cc -std=gnu17 -O3 -ffp-contract=fast
    done
    ;;
esac
echo "$same builds print the same $(grep -c . "$out/reference.txt") lines"
exit $failed
