#!/bin/sh
# Every target of `make help` works alone in a clean clone of what is committed, at least to its
# first result: targets.sh [TARGET ...]
#
# A target passes when it ends with status 0, or has printed a check's PASS or SKIP, or has run for
# five minutes. One that lacks llama.cpp is skipped. Those that write to the system are given a
# place of their own, or shown (make -n).
set -u
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MFLAGS B
place=$(mktemp -d)
group=
trap 'rm -rf "$place"' EXIT
trap '[ -z "$group" ] || kill -- -$group; exit 1' INT TERM
[ $# -gt 0 ] || set -- $(make -s help | awk '{ print $2 }')
if ! git rev-parse --git-dir >/dev/null 2>&1; then
    echo 'SKIP: not a git checkout, nothing to clone'
    exit 77
fi

passed=0
failed=0
for target in "$@"; do
    git clone -q . "$place/clone" || exit 1
    arguments=$target
    case $target in
    install | uninstall) arguments="$target DESTDIR=$place/root" ;;
    tools) arguments="-n $target" ;;
    check-all) arguments="$target JOBS=1" ;;
    bench) arguments="$target BENCH=--quick" ;;
    fuzz) arguments="$target FUZZ_SECONDS=1" ;;
    esac
    # In a session of its own, so that all it started can be ended.
    cd "$place/clone" || exit 1
    setsid sh -c "make $arguments; echo \$? >status" >log 2>&1 </dev/null &
    group=$!
    seconds=0
    result=
    while [ -z "$result" ]; do
        sleep 1
        seconds=$((seconds + 1))
        if [ -s status ]; then
            result="status $(cat status)"
        elif grep -q '^FAIL' log; then
            result='a check fails'
        elif grep -q '^PASS\|^SKIP' log; then
            result='first result'
        elif [ $seconds -ge 300 ]; then
            result='still at work'
        fi
    done
    kill -- -$group 2>/dev/null
    wait $group 2>/dev/null
    group=
    case $result in
    'status 0' | 'first result' | 'still at work')
        passed=$((passed + 1))
        echo "make $arguments: $result after $seconds s"
        ;;
    *)
        if ! grep -q '^FAIL' log && missing=$(grep '^llama.cpp is not installed' log); then
            echo "SKIP: make $arguments: ${missing%. One of:}"
            cd "$OLDPWD" && rm -rf "$place/clone" && continue
        fi
        failed=$((failed + 1))
        echo "FAIL: make $arguments: $result"
        tail -n 20 log
        ;;
    esac
    cd "$OLDPWD" || exit 1
    rm -rf "$place/clone"
done
[ $((passed + failed)) -gt 0 ] || echo 'FAIL: make help names no target'
echo "$passed targets work in a clone of their own, $failed fail"
[ $passed -gt 0 ] && [ $failed -eq 0 ]
