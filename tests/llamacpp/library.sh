# For the scripts beside it: finds or fetches llama.cpp's library, and builds with it.
#
#   $folder      where all is built      $files       for models and what the checks write
#   $run         before a program, to run it
#   $backends    the folder of llama.cpp's backends, where it doesn't find them by itself
#   build NAME   build/llamacpp/NAME
#
# Ends the script with 77 and a reason where there is no library.
: "${B:=build}" "${LLAMA:=}"
folder=$B/llamacpp
files=$folder/files
mkdir -p "$files"
command -v python3 >/dev/null || {
    echo "SKIP: llama.cpp: python3 writes the models (Debian: apt-get install python3)"
    exit 77
}
run= backends= loose=
if [ -z "$LLAMA" ] && ! examples/llamacpp/flags.sh >/dev/null 2>&1; then
    tests/llamacpp/fetch.sh "$folder/debian" || exit
    # Debian's unstable has a newer C library: its own loader runs the programs.
    LLAMA=$folder/debian
    libraries=$(dirname "$(find "$LLAMA/usr/lib" -name 'libllama.so' | head -n 1)")
    loader=$(find "$LLAMA/usr/lib" -name 'ld-linux*' | head -n 1)
    run="$loader --library-path $libraries:$libraries/blas"
    backends=$(find "$libraries/ggml" -type d -name 'backends*' | head -n 1)
    loose=-Wl,--allow-shlib-undefined
fi

build() {
    for program in "$@"; do
        "${MAKE:-make}" -s "B=$B" "LLAMA=$LLAMA" "LLAMA_LINK=$loose" "$folder/$program" || exit 1
    done
}
