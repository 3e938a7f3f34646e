#!/bin/sh
# Prints the flags that compile and link a program with llama.cpp: flags.sh [FOLDER]
#
# FOLDER is where it is installed or was built (its clone, with the build below); without one,
# pkg-config tells where it is installed. Status 1, and what to install, where neither does.
folder=$1
if [ -z "$folder" ]; then
    pkg-config --cflags --libs llama 2>/dev/null && exit 0
    {
        echo "llama.cpp is not installed. One of:"
        echo "  - Debian unstable: apt-get install libllama-dev pkg-config"
        echo "  - built by yourself: make llamacpp LLAMA=the folder with its include/ and build/"
        echo "  - make check-llamacpp fetches Debian's packages into build/ and tries with them"
    } >&2
    exit 1
fi
folder=$(cd "$folder" && pwd) || exit 1
find_one() { # a header or library below the folder
    find "$folder" -name "$1" ! -path '*/examples/*' 2>/dev/null | sort | head -n 1
}
flags=
add() {
    case " $flags " in
    *" $1 "*) ;;
    *) flags="$flags $1" ;;
    esac
}
for header in llama.h ggml.h ggml-backend.h; do
    found=$(find_one "$header")
    [ -n "$found" ] || {
        echo "$folder: no $header below it" >&2
        exit 1
    }
    add "-isystem$(dirname "$found")"
done
for library in llama ggml ggml-base; do
    found=$(find_one "lib$library.so")
    [ -n "$found" ] || found=$(find_one "lib$library.dylib")
    [ -n "$found" ] || {
        echo "$folder: no shared library $library below it (cmake -DBUILD_SHARED_LIBS=ON)" >&2
        exit 1
    }
    add "-L$(dirname "$found")"
    add "-Wl,-rpath,$(dirname "$found")"
    add "-l$library"
done
echo "$flags"
