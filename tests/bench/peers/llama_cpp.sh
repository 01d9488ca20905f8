#!/usr/bin/env bash
# Builds llama-bench, llama-batched-bench, llama-perplexity and llama-server for this CPU and prints their folder. Keeps an
# earlier build of the same programs.
#
#   tests/bench/peers/llama_cpp.sh [CACHE]      CACHE: default ~/.cache/sluice/peers
#
# The source is inside the source package of llama-cpp-python, of the version below. All other output goes to stderr. On a
# failure the last line of stderr has the reason.
set -euo pipefail
readonly version=0.3.36
readonly sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
readonly tools=(llama-bench llama-batched-bench llama-perplexity llama-server)

cache=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/peers}
say() { printf 'llama.cpp: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# -march=native: a folder for each kind of CPU
cpu=$(grep -m 1 '^flags' /proc/cpuinfo | sha256sum | cut -c1-8)
home=$cache/llama.cpp-$version
build=$home/build-$cpu
if [ "$(cat "$build/complete" 2>/dev/null)" = "${tools[*]}" ]; then
    echo "$build/bin"
    exit 0
fi
for program in python3 cmake ninja g++; do command -v "$program" >/dev/null || die "$program is needed"; done
mkdir -p "$home"
exec 9>"$home/lock"
flock 9 # allows a single build at a time

if [ ! -e "$home/src/.patched" ]; then
    package=$cache/dl/llama_cpp_python-$version.tar.gz
    if [ ! -e "$package" ]; then
        say "fetching the source (73 MiB)"
        mkdir -p "$cache/dl"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
            --dest "$cache/dl" "llama-cpp-python==$version" >&2 || die "cannot fetch llama-cpp-python $version"
    fi
    found=$(sha256sum "$package" | cut -d' ' -f1)
    [ "$found" = "$sha256" ] || die "$package has SHA-256 $found, not $sha256"
    rm -rf "$home/src"
    mkdir "$home/src"
    tar -xzf "$package" -C "$home/src" --strip-components=3 --wildcards "llama_cpp_python-$version/vendor/llama.cpp/*"
    # gcc 12 believes that _tile_loadconfig reads 8 of its 64 bytes and drops the stores to the rest: SIGILL on a CPU with AMX.
    sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1__asm__ volatile("" ::"r"(\&tc) : "memory");\n&/' "$home/src/ggml/src/ggml-cpu/amx/mmq.cpp"
    touch "$home/src/.patched"
fi

say "building for this CPU ($build; half an hour of one core's time)"
nice cmake -S "$home/src" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
    >"$home/build.log" 2>&1 || die "cmake fails: $(grep -m 1 -i error "$home/build.log") ($home/build.log)"
nice ninja -C "$build" "${tools[@]}" >>"$home/build.log" 2>&1 ||
    die "the build fails: $(grep -m 1 -iE 'error|FAILED' "$home/build.log") ($home/build.log)"
echo "${tools[*]}" >"$build/complete"
echo "$build/bin"
