# What the check scripts share: ". tests/common.sh". Sets $B and makes it.
: "${B:=build}" "${CC:=cc}" "${CXX:=c++}"
mkdir -p "$B"

has() { command -v "$1" >/dev/null 2>&1; }
cpu_has() { grep -qw "$1" /proc/cpuinfo 2>/dev/null; }
skip() { echo "SKIP: $1"; }

# The whole matrix (make check-all, make check-builds), or the quick part of it (make check)?
full() { [ -n "${FULL:-}" ]; }

# each NAMES...: the compilers of these names, each once (cc is gcc, often) and each a word: one with
# arguments, as in CC='ccache gcc', gets a script.
each() {
    known=
    for compiler in "$@"; do
        if ! has "${compiler%% *}"; then
            echo "SKIP: no $compiler (Debian: make tools)" >&2
            continue
        fi
        version=$($compiler --version 2>/dev/null | sed -n '1s/^[^ ]* //p')
        case $known in *"<$version>"*) continue ;; esac
        known="$known<$version>"
        case $compiler in
        *' '*)
            word=$B/$(echo "$compiler" | tr -c 'a-zA-Z0-9+\n' '_')
            printf '#!/bin/sh\nexec %s "$@"\n' "$compiler" >"$word"
            chmod +x "$word"
            echo "$word"
            ;;
        *) echo "$compiler" ;;
        esac
    done
}
c_compilers=$(each "$CC" gcc clang)
cxx_compilers=$(each "$CXX" g++ clang++)

# The flags of a path.
scalar=-DSNAPKV_ISA=SNAPKV_ISA_SCALAR
avx2='-DSNAPKV_ISA=SNAPKV_ISA_AVX2 -mavx2 -mfma -mf16c'
avx512='-DSNAPKV_ISA=SNAPKV_ISA_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c'
case $(uname -m) in
x86_64) paths='scalar fma avx2 avx512' ;;
*) paths='scalar default' ;;
esac
some_paths=$paths
full || some_paths=$(echo "$paths" | sed 's/fma //; s/ avx512//')
path_flags() {
    case $1 in
    scalar) echo "$scalar -DSNAPKV_SCALAR_FMA=0" ;;
    fma) echo "$scalar -mfma -DSNAPKV_SCALAR_FMA=1" ;;
    avx2) echo "$avx2" ;;
    avx512) echo "$avx512" ;;
    default) ;;
    esac
}
path_runs() { # can this processor run it?
    case $1 in
    fma | avx2) cpu_has fma && cpu_has avx2 && cpu_has f16c ;;
    avx512) cpu_has avx512dq && cpu_has avx512bw && cpu_has avx512vl ;;
    *) true ;;
    esac
}
