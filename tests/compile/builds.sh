#!/bin/sh
# Builds wherever it is asked to: every language, compiler and path with all warnings as errors, then
# programs that run, here and on other processors under emulation. What is not installed says SKIP;
# `make tools` installs it on Debian.
#
#     builds.sh [PART...]     languages guests choices levels processors windows; all by default
#
# The first four are short without FULL.
set -u
. tests/common.sh
warn='-Werror -pedantic -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wcast-align -Wundef
      -Wdouble-promotion -Iinclude'
failed=0
passed=0

pass() { passed=$((passed + 1)); }
fail() {
    echo "FAIL: $1"
    [ ! -s "$out/log" ] || head -20 "$out/log"
    failed=$((failed + 1))
}

# must WHAT COMMAND...: the command succeeds, silently.
must() {
    what=$1
    shift
    if "$@" >"$out/log" 2>&1; then
        pass
    else
        fail "$what: $*"
    fi
}

# ---- every language --------------------------------------------------------------------------

# speaks COMPILER KIND NAMES...: the first of the names that the compiler takes as -std=.
speaks() {
    compiler=$1
    kind=$2
    shift 2
    for name in "$@"; do
        if $compiler -x $kind -std=$name -fsyntax-only /dev/null 2>/dev/null; then
            echo $name
            return
        fi
    done
}

build_language() { # compiler, kind, names of the language
    std=$(speaks "$@")
    if [ -z "$std" ]; then
        skip "$1 does not know $3"
        return
    fi
    for path in $paths; do
        flags=$(path_flags $path)
        must "the interface, $path" $1 -x $2 -std=$std $warn $flags -fsyntax-only \
            tests/compile/all_functions.c
        must "nothing of it, $path" $1 -x $2 -std=$std $warn $flags -O0 -c -o "$out/o.o" \
            tests/compile/unused.c
    done
}

languages() {
    c='c99'
    cxx='c++11'
    levels='-O2'
    if full; then
        c='c99 gnu99 c11 c17 gnu17'
        cxx='c++11 c++14 c++17 gnu++17 c++20'
        levels='-O0 -Os -O2,-fno-inline -O3,-ffast-math'
    fi
    for cc in $c_compilers; do
        for std in $c; do
            build_language $cc c $std
        done
        ! full || build_language $cc c gnu23 gnu2x
    done
    for cc in $cxx_compilers; do
        for std in $cxx; do
            build_language $cc c++ $std
        done
        ! full || build_language $cc c++ c++23 c++2b
    done
    # Warnings that only an optimiser finds.
    for cc in $c_compilers; do
        for level in $levels; do
            level=$(echo $level | tr , ' ')
            for path in $some_paths; do
                must "$path $level" $cc -std=c99 $warn $(path_flags $path) $level -c -o "$out/o.o" \
                    tests/compile/all_functions.c
            done
        done
    done
}

# ---- beside others ---------------------------------------------------------------------------

guests() {
    for cc in $c_compilers; do
        for path in $some_paths; do
            flags=$(path_flags $path)
            must "after hostile macros, $path" $cc -std=gnu99 -w -Iinclude $flags -c -o "$out/o.o" \
                tests/compile/hostile.c
            must "after hostile macros, C++, $path" $cc -x c++ -std=c++11 -w -Iinclude $flags -c \
                -o "$out/o.o" tests/compile/hostile.c
            must "C++ without exceptions, $path" $cc -x c++ -std=c++11 $warn $flags -O2 \
                -fno-exceptions -fno-rtti -c -o "$out/o.o" tests/compile/all_functions.c
        done
        # One translation unit without vectors, one with, as in a program that dispatches; C and C++.
        case $(uname -m) in
        x86_64) also='scalar fma' ;;
        *) also=scalar ;;
        esac
        for kind in 'c -std=c99' 'c++ -std=c++11'; do
            must "another, $kind" $cc -x $kind $warn $(path_flags scalar) -O2 -c \
                -o "$out/there-${kind%% *}.o" -Duse_everything=use_everything_there \
                tests/compile/all_functions.c
        done
        for path in $also; do
            must "one translation unit, $path" $cc -std=c99 $warn $(path_flags $path) -c \
                -o "$out/here.o" -Duse_everything=use_everything_here \
                tests/compile/all_functions.c
            for kind in c c++; do
                must "both linked" $cc -std=c99 $warn -o "$out/linked" tests/compile/linked.c \
                    "$out/here.o" "$out/there-$kind.o" -lm
                must "both run" "$out/linked"
            done
        done
    done
}

# ---- choices ---------------------------------------------------------------------------------

refuses() { # text that the error must hold, compiler, flags
    text=$1
    shift
    if "$@" -Iinclude -c -o "$out/o.o" tests/compile/unused.c 2>"$out/log"; then
        fail "an impossible choice compiles: $*"
    elif grep -q "error.*$text" "$out/log"; then
        pass
    else
        fail "the error does not say $text: $*"
    fi
}

tells() { # how often it is said that AVX2 alone is slow, compiler, flags
    times=$1
    shift
    "$@" -Iinclude -c -o "$out/o.o" tests/compile/unused.c 2>"$out/log" ||
        fail "does not compile: $*"
    if [ "$(grep -c '\(note\|warning\):.*AVX2 without' "$out/log")" = "$times" ]; then
        pass
    else
        fail "does not say $times times that AVX2 alone is slow: $*"
    fi
}

choices() {
    for cc in $c_compilers; do
        case $(uname -m) in
        x86_64)
            refuses 'SNAPKV_ISA_AVX2 needs -mavx2' $cc -DSNAPKV_ISA=SNAPKV_ISA_AVX2
            refuses 'SNAPKV_ISA_AVX2 needs .*-mfma' $cc -mavx2 -DSNAPKV_ISA=SNAPKV_ISA_AVX2
            refuses 'SNAPKV_ISA_AVX2 needs .*-mf16c' $cc -mavx2 -mfma -DSNAPKV_ISA=SNAPKV_ISA_AVX2
            refuses 'SNAPKV_ISA_AVX512 needs -mavx512f' $cc $avx2 -USNAPKV_ISA \
                -DSNAPKV_ISA=SNAPKV_ISA_AVX512
            refuses 'SNAPKV_ISA_AVX512 needs .*-mavx512dq' $cc -mavx512f -mavx512bw -mavx512vl \
                -DSNAPKV_ISA=SNAPKV_ISA_AVX512
            refuses 'SNAPKV_ISA_NEON needs an AArch64' $cc -DSNAPKV_ISA=SNAPKV_ISA_NEON
            ;;
        *) refuses 'SNAPKV_ISA_AVX2 needs -mavx2' $cc -DSNAPKV_ISA=SNAPKV_ISA_AVX2 ;;
        esac
        refuses 'SNAPKV_ISA is none of' $cc -DSNAPKV_ISA=9
        refuses 'needs C99' $cc -std=c89
        refuses 'needs C99' $cc -std=gnu89
        refuses 'needs C++11' $cc -x c++ -std=c++98
        case $(uname -m) in
        x86_64)
            tells 1 $cc -mavx2
            tells 1 $cc -mavx2 -mfma
            tells 1 $cc -mavx2 -mf16c
            tells 0 $cc
            tells 0 $cc -mavx2 -mfma -mf16c
            tells 0 $cc -mavx2 $scalar
            tells 0 $cc -mavx2 -DSNAPKV_DECLARATIONS_ONLY
            ;;
        esac
        # What a build may ask for: plain static functions, and the library in one file of many.
        for kind in 'c -std=c99' 'c++ -std=c++11'; do
            must 'plain static functions' $cc -x $kind $warn -DSNAPKV_API=static -O2 -c \
                -o "$out/o.o" tests/compile/all_functions.c
            must 'plain static functions, none used' $cc -x $kind $warn -DSNAPKV_API=static -O2 -c \
                -o "$out/o.o" tests/compile/unused.c
            for name in here there; do
                must 'declarations alone' $cc -x $kind $warn -DSNAPKV_DECLARATIONS_ONLY -c \
                    -o "$out/$name.o" -Duse_everything=use_everything_$name \
                    tests/compile/all_functions.c
            done
            must 'the file with the bodies' $cc -x $kind $warn -O2 -c -o "$out/library.o" \
                tests/support/library.c
            must 'all linked' $cc -std=c99 $warn -DSNAPKV_DECLARATIONS_ONLY -o "$out/linked" \
                tests/compile/linked.c "$out/here.o" "$out/there.o" "$out/library.o" -lm
            must 'all run' "$out/linked"
        done
        # What stays defined afterwards: the options, each to a value, and nothing private.
        $cc -Iinclude -E -dM tests/compile/unused.c >"$out/log"
        for option in SNAPKV_ISA SNAPKV_API SNAPKV_SCALAR_FMA SNAPKV_MEMCPY SNAPKV_ISA_NAME; do
            if grep -q "^#define $option ." "$out/log"; then
                pass
            else
                fail "$cc: $option has no value"
            fi
        done
        if grep '^#define SKV_' "$out/log" >"$out/left"; then
            cp "$out/left" "$out/log"
            fail "$cc: private macros stay defined"
        else
            pass
        fi
    done
}

# ---- programs that run -----------------------------------------------------------------------

# The vectors file, through a library built with the flags and a caller built without.
levels() {
    levels='-O3 -O1,-ffast-math'
    ! full || levels='-O0 -Os -O3 -O1,-ffast-math -O3,-ffast-math -O1,-fshort-enums'
    for cc in $c_compilers; do
        must "cases.c" $cc -std=c99 $warn -O1 -c -o "$out/cases.o" tests/compile/cases.c
        for path in $paths; do
            if ! path_runs $path; then
                skip "$cc $path does not run: this processor does not have it"
                continue
            fi
            for level in $levels; do
                level=$(echo $level | tr , ' ')
                caller=$out/cases.o
                ties=
                case $level in
                *short-enums) caller=tests/compile/cases.c ;; # it must have the same enumerations
                *fast-math) ties=--near-ties ;;
                esac
                must "$path $level" $cc -std=c99 $warn $(path_flags $path) $level \
                    -o "$out/cases" tests/compile/subject.c $caller -lm
                must "$path $level runs" "$out/cases" $ties
            done
            echo "$cc: $("$out/cases")"
        done
    done
}

# ---- other processors ------------------------------------------------------------------------

# The digest of fewer problems than `make check` takes, and what this machine says of them.
problems=20
digest_here() {
    [ -s "$out/digest.txt" ] && return
    fma=
    cpu_has fma && fma=-mfma
    ${CC:-cc} -std=c99 -O2 $fma $scalar -DSNAPKV_SCALAR_FMA=1 -DPROBLEMS=$problems -Iinclude \
        -o "$out/digest" tests/parity/digest.c -lm && "$out/digest" >"$out/digest.txt"
}

# The error table and those unit tests that are quick under an emulator too: sizes of 32 bits, bytes
# of the other order. Debian has cmocka for this machine alone.
unit_tests='errors alias cursor ledger copies gather select vote mass article scale top_k corners'
unit="-std=c99 -O1 -DSNAPKV_DECLARATIONS_ONLY -Itests/compile/foreign -Iinclude -Iexamples
      -Itests/support"

# foreign NAME BITS RUNNER COMPILER FLAGS...: BITS says whether the digest must agree.
foreign() {
    name=$1
    bits=$2
    runner=$3
    compiler=$4
    shift 4
    program=$out/$name
    if ! has $compiler; then
        skip "$name: no $compiler"
        return
    fi
    must "$name: the interface" $compiler -std=c99 $warn "$@" -O2 -c -o "$out/o.o" \
        tests/compile/all_functions.c
    must "$name: nothing of it" $compiler -std=c99 $warn "$@" -O0 -c -o "$out/o.o" \
        tests/compile/unused.c
    must "$name: cases" $compiler -std=c99 $warn "$@" -O2 -o "$program" tests/compile/cases.c \
        tests/compile/subject.c -lm
    if [ -n "$runner" ] && ! has "${runner##* }"; then
        skip "$name: built, not run: no ${runner##* }"
        return
    fi
    suffix=
    case $runner in *wine*) suffix=.exe ;; esac
    must "$name: cases" $runner "$program$suffix"
    echo "$name: $(tail -1 "$out/log" | tr -d '\r')"
    [ $bits = yes ] || return
    digest_here
    must "$name: digest" $compiler -std=c99 -O2 -DPROBLEMS=$problems "$@" -Iinclude \
        -o "$program-digest" tests/parity/digest.c -lm
    $runner "$program-digest$suffix" 2>"$out/log" | tr -d '\r' >"$out/$name.txt"
    if cmp -s "$out/$name.txt" "$out/digest.txt"; then
        echo "$name: the same bits"
        pass
    else
        fail "$name: other bits"
        diff "$out/$name.txt" "$out/digest.txt"
    fi
    [ -z "$suffix" ] || return # the guard pages are POSIX's
    objects=
    for source in tests/support/*.c; do
        object=$out/$(basename "$source" .c).o
        must "$name: $source" $compiler $unit "$@" -c -o "$object" "$source"
        objects="$objects $object"
    done
    for test in $unit_tests; do
        must "$name: test_$test" $compiler $unit "$@" -o "$program-unit" \
            tests/unit/test_$test.c $objects -lm
        must "$name: test_$test" $runner "$program-unit"
        grep '^SKIP' "$out/log" | sed "s/^SKIP:/SKIP: $name:/" | sort -u
    done
}

# The digest on a big-endian AArch64, which must take the scalar path. clang knows it; of a libc
# there are only the little-endian headers, which serve, and tests/compile/foreign/libc.c.
big_endian_aarch64() {
    name=aarch64-big-endian
    headers=/usr/aarch64-linux-gnu/include
    if ! has clang || ! has ld.lld || ! has qemu-aarch64_be || [ ! -d $headers ]; then
        skip "$name: no clang, ld.lld, qemu-aarch64_be or headers in $headers"
        return
    fi
    digest_here
    mkdir -p "$out/be/gnu"
    : >"$out/be/gnu/stubs-lp64_be.h"
    must "$name: digest" clang --target=aarch64_be-linux-gnu -std=c11 -O2 -ffreestanding \
        -fno-math-errno -fno-stack-protector -nostdlib -static -fuse-ld=lld -DPROBLEMS=$problems \
        -Iinclude -I"$out/be" -I$headers -o "$out/$name" tests/parity/digest.c \
        tests/compile/foreign/libc.c
    qemu-aarch64_be "$out/$name" >"$out/$name.txt" 2>"$out/log"
    if cmp -s "$out/$name.txt" "$out/digest.txt"; then
        echo "$name: the same bits"
        pass
    else
        fail "$name: other bits"
        diff "$out/$name.txt" "$out/digest.txt"
    fi
}

processors() {
    # 32-bit x86: with SSE and FMA the bits are the contract's; the x87 rounds as it likes.
    # Not every 64-bit kernel runs it.
    i386='env QEMU_CPU=max qemu-i386'
    printf 'int main(void) { return 0; }' >"$out/o.c"
    if cpu_has fma && i686-linux-gnu-gcc -static -o "$out/o" "$out/o.c" 2>/dev/null &&
        "$out/o" 2>/dev/null; then
        i386=
    fi
    foreign i686 yes "$i386" i686-linux-gnu-gcc -static -msse2 -mfpmath=sse -mfma
    foreign i686-avx2 yes "$i386" i686-linux-gnu-gcc -static $avx2 -mfpmath=sse -mstackrealign
    foreign i686-sse2 no "$i386" i686-linux-gnu-gcc -static -msse2 -mfpmath=sse
    foreign i686-x87 no "$i386" i686-linux-gnu-gcc -static -mno-sse
    foreign armv7 yes qemu-arm arm-linux-gnueabihf-gcc -static -mfpu=neon-vfpv4
    foreign armv7-vfpv3 no qemu-arm arm-linux-gnueabihf-gcc -static -mfpu=vfpv3-d16
    foreign armv7-thumb-neon no qemu-arm arm-linux-gnueabihf-gcc -static -mthumb -mfpu=neon
    foreign aarch64 yes qemu-aarch64 aarch64-linux-gnu-gcc -static
    foreign aarch64-scalar yes qemu-aarch64 aarch64-linux-gnu-gcc -static $scalar
    foreign riscv64 yes qemu-riscv64 riscv64-linux-gnu-gcc -static
    # ISO mode (-std=c99) computes float in double on s390x (FLT_EVAL_METHOD 1), as x87 does in more.
    foreign s390x-big-endian yes qemu-s390x s390x-linux-gnu-gcc -static -fexcess-precision=fast
    foreign s390x-in-double no qemu-s390x s390x-linux-gnu-gcc -static -Wno-double-promotion
    foreign ppc64-big-endian yes qemu-ppc64 powerpc64-linux-gnu-gcc -static
    if has clang && has aarch64-linux-gnu-gcc; then
        foreign aarch64-clang yes qemu-aarch64 clang --target=aarch64-linux-gnu -static
    else
        skip 'aarch64-clang: no clang or no cross libraries'
    fi
    big_endian_aarch64
}

windows() {
    # A Windows of its own for wine, which goes again.
    if has wine; then
        WINEPREFIX=$(cd "$out" && pwd)/wine
        WINEDEBUG=-all
        DISPLAY=
        export WINEPREFIX WINEDEBUG DISPLAY
    fi
    foreign windows yes 'timeout 300 wine' x86_64-w64-mingw32-gcc -static $avx2 -Wno-psabi
    foreign windows-fma yes 'timeout 300 wine' x86_64-w64-mingw32-gcc -static $scalar -mfma
    foreign windows-sse2 no 'timeout 300 wine' x86_64-w64-mingw32-gcc -static
    if has wine; then
        wineserver -k >/dev/null 2>&1 || wineserver-stable -k >/dev/null 2>&1
        rm -rf "$WINEPREFIX"
    fi
}

for part in ${*:-languages guests choices levels processors windows}; do
    out=$B/builds/$part # the parts may run side by side
    mkdir -p "$out"
    $part
done
[ $((passed + failed)) -gt 0 ] || exit 77 # each part has said what it lacks
echo "$passed builds and runs passed, $failed failed"
[ $failed -eq 0 ]
