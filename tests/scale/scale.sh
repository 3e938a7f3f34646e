#!/bin/sh
# Builds and runs one of the large tests: scale.sh native|ubsan TEST
: "${B:=build}"
: "${CLANG:=clang}"
if [ "$1" = ubsan ] && ! echo 'int main(void) { return 0; }' |
    "$CLANG" -fsanitize=undefined,implicit-conversion -x c - -o /dev/null 2>/dev/null; then
    echo "SKIP: scale/$1/$2 needs $CLANG and its sanitizers (Debian: clang)"
    exit 77
fi
"${MAKE:-make}" -s "$B/scale/$1/$2" && exec "$B/scale/$1/$2"
