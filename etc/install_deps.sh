#!/usr/bin/env bash
# Installs the Debian 12 packages that Sluice needs: `build` (compile and run), `test` (build and tests) or `browser` (for
# tests/long.sh page).
# Prints the packages. Does nothing, and needs no root, if all are installed.
set -euo pipefail

build=(cmake ninja-build pkg-config gcc g++ libc6-dev libgrpc-dev protobuf-compiler libprotobuf-dev libprotobuf-c-dev
       protobuf-c-compiler libev-dev libsqlite3-dev libjansson-dev libpcre2-dev libutf8proc-dev libinih-dev libssl-dev
       libseccomp-dev libedit-dev zlib1g-dev libucx-dev python3 python3-pip python3-venv ca-certificates)
test=(curl dpkg-dev libcmocka-dev openssl clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev sqlite3 git procps man-db mandoc zsh fish systemd
      systemd-container iproute2
      golang-go golang-google-grpc-dev golang-google-genproto-dev golang-goprotobuf-dev)

browser=(chromium fonts-dejavu-core)

packages=("${build[@]}")
case "${1:-build}" in
build) ;;
test) packages+=("${test[@]}") ;;
browser) packages=("${browser[@]}") ;;
*) echo "usage: etc/install_deps.sh [build|test|browser]" >&2; exit 2 ;;
esac

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep 'ok installed' >/dev/null || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "packages: all ${#packages[@]} are installed already"
    exit 0
fi
echo "packages: installing ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "packages: this needs root or sudo; run as root: apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
# sudo keeps no variables, so env sets them for apt-get: debconf asks nothing, and warns of no apt-utils.
apt=("${sudo[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get)
"${apt[@]}" update -q >/dev/null
"${apt[@]}" install -y -q --no-install-recommends "${missing[@]}" |
    sed -nuE 's/^(Need to get|After this operation,) (.*[^.])\.?$/packages: \1 \2/p'
echo "packages: done"
