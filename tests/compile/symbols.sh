#!/bin/sh
# No allocation, no writable static data, no libc but a few functions: what an object that uses the
# whole interface needs and holds, as nm and size tell, for each compiler and several flags.
set -u
. tests/common.sh
allowed='memcpy memset memmove sqrtf fmaf'
include=${1:-include}
directory=$B/symbols
mkdir -p "$directory"
failed=0
checked=0

for tool in nm size; do
    has $tool || {
        skip "no $tool (Debian: apt-get install binutils)"
        exit 77
    }
done

# The public functions that the object doesn't mention would go unchecked.
for name in $(grep -oE '\bsnapkv_[a-z_]+\(' "$include/snapkv.h" | tr -d '(' | sort -u); do
    if grep -qE "^SNAPKV_API .*\b$name\(" "$include/snapkv.h" &&
        ! grep -q "\b$name(" tests/compile/all_functions.c; then
        echo "tests/compile/all_functions.c doesn't use $name"
        failed=1
    fi
done

check() { # compiler, flags
    object=$directory/$checked.o
    # Neither position-independent tables nor stack protectors belong to the header.
    $1 -I$include -c -o "$object" -fno-pic -fno-pie -fno-stack-protector $2 \
        tests/compile/all_functions.c || {
        echo "$1 $2: doesn't compile"
        failed=1
        return
    }
    checked=$((checked + 1))
    data=$(nm "$object" | awk '$(NF - 1) ~ /^[bBcCdDgGsS]$/ { print $NF }')
    [ -z "$data" ] || {
        echo "$1 $2: writable static data:" $data
        failed=1
    }
    bytes=$(size "$object" | awk 'NR == 2 { print $2 + $3 }')
    [ "$bytes" = 0 ] || {
        echo "$1 $2: $bytes bytes in .data and .bss"
        failed=1
    }
    for symbol in $(nm -u "$object" | awk '{ print $NF }'); do
        case " $allowed " in
        *" $symbol "*) ;;
        *)
            echo "$1 $2: needs $symbol"
            failed=1
            ;;
        esac
    done
}

for compiler in $c_compilers; do
    native=$($compiler -march=native -E -x c /dev/null >/dev/null 2>&1 && echo -march=native)
    check $compiler "-std=c99 -O0"
    check $compiler "-std=c99 -O3 $native"
    check $compiler "-std=c99 -Os $scalar -DSNAPKV_SCALAR_FMA=1"
    full || continue
    for flags in -O1 -O2 -O3 -Os "-O2 $native" "-O3 -ffast-math"; do
        check $compiler "-std=c99 $flags"
    done
done
for compiler in $cxx_compilers; do
    check "$compiler -x c++" '-std=c++11 -O2'
    ! full || check "$compiler -x c++" '-std=c++11 -O0'
done
echo "$checked objects checked"
exit $failed
