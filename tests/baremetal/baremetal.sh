#!/bin/sh
# On a Cortex-M4F and a Cortex-M7 without an operating system: the worked example prints what it
# prints here, the digest has the same bits, the vectors file holds, and no heap, no libc but a few
# functions, little code, little stack. QEMU stands in for the boards (MPS2 AN386, AN500).
#
# Without FULL, the M4F alone.
set -u
. tests/common.sh
out=$B/baremetal
here=tests/baremetal
problems=20
limit=16384 # bytes of code of the smallest subset, -Os, Cortex-M4F
allowed='memcpy memset memmove sqrtf fmaf'
warn='-Werror -pedantic -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wcast-align -Wundef
      -Wdouble-promotion -Iinclude'
cross=arm-none-eabi-gcc
failed=0
mkdir -p "$out"

fail() {
    echo "FAIL: $1"
    failed=1
}

if ! has $cross; then
    skip "no $cross (Debian: make tools)"
    exit 77
fi

# What this machine says.
fma=
! cpu_has fma || fma=-mfma
$CC -std=c99 -O2 $fma -DSNAPKV_ISA=SNAPKV_ISA_SCALAR -DSNAPKV_SCALAR_FMA=1 \
    -DPROBLEMS=$problems -Iinclude -o "$out/digest" tests/parity/digest.c -lm &&
    "$out/digest" >"$out/digest.txt" || fail 'the digest here'
$CC -std=c99 -O2 -Iinclude -o "$out/worked_example" examples/worked_example.c -lm &&
    "$out/worked_example" >"$out/worked_example.txt" || fail 'the worked example here'

# Bytes of the code and the constants of an object.
code_size() {
    arm-none-eabi-size -A "$1" | awk '/^\.(text|rodata)/ { sum += $2 } END { print sum + 0 }'
}

run() { # machine, program
    timeout 300 qemu-system-arm -machine $1 -nographic -monitor none -serial none \
        -semihosting-config enable=on,target=native -kernel "$2" </dev/null
}

board() { # name, machine, its memory, flags
    name=$1
    machine=$2
    memory=$3
    cpu="-mthumb -mfloat-abi=hard $4"
    echo "$name:"

    # The objects: what they need, and how big they are.
    levels='-Os'
    ! full || levels='-Os -O2 -Os,-ffreestanding -O2,-ffreestanding'
    for flags in $levels; do
        flags=$(echo $flags | tr , ' ')
        object=$out/object.o
        if ! $cross -std=c99 $warn $cpu $flags -c -o "$object" tests/compile/all_functions.c; then
            fail "$flags does not compile"
            continue
        fi
        for symbol in $(arm-none-eabi-nm -u "$object" | awk '{ print $NF }'); do
            case " $allowed " in
            *" $symbol "*) ;;
            *) fail "$flags needs $symbol" ;;
            esac
        done
        data=$(arm-none-eabi-size "$object" | awk 'NR == 2 { print $2 + $3 }')
        [ "$data" = 0 ] || fail "$flags: $data bytes of writable data"
        whole=$(code_size "$object")
        $cross -std=c99 $warn $cpu $flags -c -o "$object" $here/subset.c || fail "$flags: the subset"
        subset=$(code_size "$object")
        echo "  code, $flags: $subset bytes for vote + pool + top_k + gather_rows, $whole for all"
        if [ "$flags" = -Os ] && [ "$subset" -gt $limit ]; then
            fail "the subset takes more than $limit bytes; the largest functions:"
            arm-none-eabi-nm -S --size-sort -r -t d "$object" | head -6
        fi
    done

    if ! has qemu-system-arm; then
        skip 'built, not run: no qemu-system-arm (Debian: make tools)'
        return
    fi
    $cross -std=c99 $cpu -O2 -Wall -Wextra -c -o "$out/startup.o" $here/startup.c || fail startup.c
    # -u _printf_float: newlib-nano prints floats on demand.
    link="-Wl,--defsym=data_origin=$memory --specs=nano.specs --specs=rdimon.specs -nostartfiles -u _printf_float -T $here/mps2.ld
          -Wl,--no-warn-rwx-segments $out/startup.o"
    for program in "worked_example examples/worked_example.c" \
        "digest tests/parity/digest.c -DPROBLEMS=$problems" \
        "cases tests/compile/cases.c tests/compile/subject.c" "footprint $here/footprint.c"; do
        set -- $program
        kind=$1
        shift
        elf=$out/$name-$kind.elf
        if ! $cross -std=c99 $warn -Wno-double-promotion -Wno-cast-align $cpu -O2 -o "$elf" "$@" \
            $link -lm; then
            fail "$kind does not build"
            continue
        fi
        run $machine "$elf" >"$out/$name-$kind.txt" 2>&1 || fail "$kind ends with an error"
        case $kind in
        footprint) cat "$out/$name-$kind.txt" ;;
        cases) echo "  $(tail -1 "$out/$name-$kind.txt")" ;;
        *)
            if cmp -s "$out/$name-$kind.txt" "$out/$kind.txt"; then
                echo "  $kind: prints what it prints here"
            else
                fail "$kind prints something else"
                diff "$out/$name-$kind.txt" "$out/$kind.txt" | head
            fi
            ;;
        esac
    done
}

board cortex-m4f mps2-an386 0x21000000 '-mcpu=cortex-m4 -mfpu=fpv4-sp-d16'
! full || board cortex-m7 mps2-an500 0x60000000 '-mcpu=cortex-m7 -mfpu=fpv5-d16'
exit $failed
