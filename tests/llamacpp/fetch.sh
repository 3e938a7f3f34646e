#!/bin/sh
# Fetches libllama, its headers and what they need from Debian's unstable: fetch.sh FOLDER
#
# Into FOLDER/usr, nothing is installed; 8 MB, with lists of its own from the mirror that this
# machine uses. The C library comes too, for it is newer than the machine's. Status 77 with a reason
# where that can't be done.
set -eu
folder=$1
[ -e "$folder/complete" ] && exit 0
skip() {
    echo "SKIP: llama.cpp's library: $1"
    exit 77
}
command -v apt-get >/dev/null && command -v dpkg >/dev/null || skip "not installed, and no apt-get to fetch it"
mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 == "main" { print $3; exit }')
[ -n "$mirror" ] || skip "not installed, and this machine has no lists of a Debian mirror (apt-get update)"

rm -rf "$folder"
mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/packages"
folder=$(cd "$folder" && pwd)
echo "deb $mirror sid main" >"$folder/sources.list"
apt() {
    apt-get -qq -oDir::Etc::SourceList="$folder/sources.list" -oDir::Etc::SourceParts=/dev/null \
        -oDir::State::Lists="$folder/lists" -oDir::Cache="$folder/cache" \
        -oAcquire::Check-Valid-Until=false -oAPT::Sandbox::User=root "$@" >"$folder/log" 2>&1
}
apt update || skip "not installed, and the lists of Debian's unstable can't be fetched: $(tail -n 1 "$folder/log")"
cd "$folder/packages"
apt download libllama0 libllama-dev libggml0 libggml-dev libc6 libstdc++6 libgcc-s1 libgomp1 libblas3 ||
    skip "not installed, and Debian's packages can't be fetched: $(tail -n 1 "$folder/log")"
for package in *.deb; do
    dpkg -x "$package" "$folder"
done
rm -rf "$folder/lists" "$folder/cache" "$folder/packages"
touch "$folder/complete"
