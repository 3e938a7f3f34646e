#!/bin/sh
# Installs into a temporary place, builds a program outside the project against the installed copy
# through pkg-config, runs it, uninstalls, and finds nothing left.
set -eu
cd "$(dirname "$0")/../.."
cc=${CC:-cc}
unset MAKEFLAGS MFLAGS 2>/dev/null || true # a make of its own, also under make -j or make -n
stage=$(mktemp -d)
outside=$(mktemp -d)
trap 'rm -rf "$stage" "$outside"' EXIT
prefix=/opt/snapkv
make -s install DESTDIR="$stage" PREFIX=$prefix

cat >"$outside/program.c" <<'END'
#include <snapkv.h>
#include <stdio.h>

int main(void) {
    /* Four prefix positions, of which the query at position 4 sees the third as the strongest. */
    const float query[1][1] = {{1.0f}}, keys[5][1] = {{0.0f}, {1.0f}, {5.0f}, {2.0f}, {0.0f}};
    float workspace[2048];
    int32_t kept[2];
    snapkv_config config = snapkv_default_config();
    snapkv_layer layer = {0};

    config.window = 1;
    config.capacity = 2;
    config.kernel_size = 1;
    layer.n_query_heads = layer.n_kv_heads = layer.head_dim = 1;
    layer.length = 5;
    layer.queries.data = query;
    layer.keys.data = keys;
    layer.queries.row_stride = layer.keys.row_stride = sizeof(float);
    if (snapkv_workspace_min(&config, &layer) > sizeof workspace ||
        snapkv_select(&config, &layer, 0, kept, NULL, NULL, workspace, sizeof workspace) !=
            SNAPKV_OK ||
        kept[0] != 2 || kept[1] != 4) {
        return 1;
    }
    printf("%d.%d.%d\n", SNAPKV_VERSION_MAJOR, SNAPKV_VERSION_MINOR, SNAPKV_VERSION_PATCH);
    return 0;
}
END

if command -v pkg-config >/dev/null 2>&1; then
    export PKG_CONFIG_PATH="$stage$prefix/share/pkgconfig"
    version=$(pkg-config --modversion snapkv)
    cflags=$(PKG_CONFIG_SYSROOT_DIR=$stage pkg-config --cflags snapkv)
    libs=$(pkg-config --libs snapkv)
    [ "$(pkg-config --variable=prefix snapkv)" = $prefix ]
else
    echo "SKIP pkg-config: not installed; compiled with -I instead"
    version=
    cflags=-I$stage$prefix/include
    libs=-lm
fi
(cd "$outside" && $cc -std=c99 -O1 $cflags -o program program.c $libs)
printed=$("$outside/program")
if [ -n "$version" ] && [ "$printed" != "$version" ]; then
    echo "snapkv.pc says $version, the header $printed"
    exit 1
fi

make -s uninstall DESTDIR="$stage" PREFIX=$prefix
left=$(find "$stage" ! -type d)
if [ -n "$left" ]; then
    echo "left after make uninstall: $left"
    exit 1
fi
echo "installed $printed, compiled with $cflags, uninstalled"
