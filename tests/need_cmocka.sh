#!/bin/sh
# Whether a program with cmocka can be compiled; if not, says what to type, or with "install" does
# it, where that is allowed.
works() {
    printf '%s\n' '#include <stdarg.h>' '#include <stddef.h>' '#include <stdint.h>' \
        '#include <setjmp.h>' '#include <cmocka.h>' 'int main(void) { return 0; }' |
        ${CC:-cc} -x c - -lcmocka -o /dev/null 2>/dev/null
}
works && exit 0
as_root=
[ "$(id -u)" = 0 ] || as_root='sudo '
has() { command -v "$1" >/dev/null 2>&1; }
refresh=:
if has apt-get; then
    refresh="${as_root}apt-get update -qq"
    line="${as_root}apt-get install -y -qq libcmocka-dev"
elif has dnf; then
    line="${as_root}dnf install -y -q libcmocka-devel"
elif has apk; then
    line="${as_root}apk add -q cmocka-dev"
elif has pacman; then
    line="${as_root}pacman -S --noconfirm cmocka"
elif has brew; then
    line='brew install cmocka'
else
    line=
fi
if [ "$1" = install ] && [ -n "$line" ]; then
    echo "The tests need cmocka, which is not here: $line"
    { $refresh && DEBIAN_FRONTEND=noninteractive $line; } </dev/null >/dev/null 2>&1
    works && exit 0
fi
echo "The tests need cmocka (https://cmocka.org): ${line:-install its development package}" >&2
exit 1
