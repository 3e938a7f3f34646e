#!/bin/sh
# Makes sure that cmocka can be compiled against: installs it where that is allowed, else says how.
works() {
    printf '%s\n' '#include <stdarg.h>' '#include <stddef.h>' '#include <stdint.h>' \
        '#include <setjmp.h>' '#include <cmocka.h>' 'int main(void) { return 0; }' |
        ${CC:-cc} -x c - -lcmocka -o /dev/null 2>/dev/null
}
works && exit 0
as_root=
[ "$(id -u)" = 0 ] || as_root='sudo -n'
if command -v apt-get >/dev/null 2>&1; then
    package=libcmocka-dev
    $as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq $package
elif command -v dnf >/dev/null 2>&1; then
    package=libcmocka-devel
    $as_root dnf install -y -q $package
elif command -v apk >/dev/null 2>&1; then
    package=cmocka-dev
    $as_root apk add -q $package
elif command -v pacman >/dev/null 2>&1; then
    package=cmocka
    $as_root pacman -S --noconfirm $package
elif command -v brew >/dev/null 2>&1; then
    package=cmocka
    brew install $package
fi >/dev/null 2>&1
works && exit 0
echo "The tests need cmocka: install ${package:-its development package} (https://cmocka.org) and run make check again." >&2
exit 1
