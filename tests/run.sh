#!/bin/sh
# Runs checks of tests/checks and counts them: run.sh PATTERN ...
#
# A pattern is "quick", "long", or the name of a check as the shell matches it ('fuzz/*'). As many
# run at a time as there are processors (or $JOBS). A check passes with status 0 and is skipped with
# 77, when it has said why in a line "SKIP: ..."; anything else fails, and its output is shown. Of one
# that passes the last line is shown. The last line of all is the count.
list=tests/checks

if [ "$1" != --one ]; then
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT
    export results
    while read -r when name command; do
        for pattern in "$@"; do
            case $when:$name in
            '#'* | :) ;;
            $pattern:* | *:$pattern)
                echo "$name"
                break
                ;;
            esac
        done
    done <$list >"$results/chosen"
    unset MAKEFLAGS MFLAGS # the checks that call make are not part of this one
    xargs -n 1 -P "${JOBS:-$(getconf _NPROCESSORS_ONLN || echo 1)}" "$0" --one \
        <"$results/chosen"
    passed=$(grep -c PASS "$results/counts")
    failed=$(($(grep -c . "$results/chosen") - passed - $(grep -c SKIP "$results/counts")))
    parts=$(awk '{ n += $2 } END { print n + 0 }' "$results/counts")
    echo "$passed passed, $failed failed, $parts skipped"
    [ $((passed + parts)) -gt 0 ] && [ "$failed" -eq 0 ]
    exit
fi

name=$2
command=$(awk -v name="$name" '$2 == name { $1 = $2 = ""; print }' $list)
log=$(mktemp "$results/log.XXXXXX")
start=$(date +%s)
sh -c "$command" >"$log" 2>&1 </dev/null
status=$?
seconds=$(($(date +%s) - start))
# A check may hold parts that could not run here: each says SKIP on a line of its own.
parts=$(grep -c '^SKIP' "$log")
{
    case $status in
    0)
        result=PASS
        echo "PASS  $name ($seconds s)$(grep -v '^SKIP' "$log" | tail -n 1 | sed 's/^ */: /')"
        ;;
    77)
        result=SKIP
        echo "SKIP  $name"
        [ "$parts" -gt 0 ] || parts=1
        ;;
    *)
        result=FAIL
        echo "FAIL  $name (status $status): $command"
        sed 's/^/      | /' "$log"
        ;;
    esac
    grep '^SKIP' "$log" | sed 's/^/      /'
} >"$log.report"
# One report at a time.
until mkdir "$results/printing" 2>/dev/null; do
    sleep 1
done
cat "$log.report"
echo "$result $parts" >>"$results/counts"
rmdir "$results/printing"
