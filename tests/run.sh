#!/bin/sh
# Runs checks one after the other and counts them: run.sh NAME=COMMAND ...
# A check passes with status 0 and is skipped with 77 (it has said why in a line "SKIP: ...");
# anything else fails and its output is shown. Of one that passes the last line is shown, unless it
# is cmocka's. The last line of all is the count.
passed=0
failed=0
skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for check in "$@"; do
    name=${check%%=*}
    command=${check#*=}
    start=$(date +%s)
    sh -c "$command" >"$log" 2>&1
    status=$?
    seconds=$(($(date +%s) - start))
    # A check may hold parts that could not run here: each says SKIP on a line of its own.
    parts=$(grep -c '^SKIP' "$log")
    case $status in
    0)
        echo "PASS  $name (${seconds} s)$(grep -v '^SKIP' "$log" | sed -n '$ { /^\[/! s/^ */: /p }')"
        passed=$((passed + 1))
        ;;
    77)
        echo "SKIP  $name"
        [ "$parts" -gt 0 ] || parts=1
        ;;
    *)
        echo "FAIL  $name (status $status)"
        sed 's/^/      | /' "$log"
        failed=$((failed + 1))
        ;;
    esac
    grep '^SKIP' "$log" | sed 's/^/      /'
    skipped=$((skipped + parts))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
