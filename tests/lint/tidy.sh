#!/usr/bin/env bash
# clang-tidy 14 over the product's sources: tests/lint/tidy.sh BUILD_DIR [FILE...]. Checks are in .clang-tidy. SLUICE_TIDY_NODES: how many states
# the analyzer looks at in each function, 225,000 where it is not set; nearly all the time is the analyzer's.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: tests/lint/tidy.sh BUILD_DIR [FILE...]}
shift
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(git ls-files -- 'base/*.c' 'kernels/*.c' 'engine/*.c' 'proto/*.c' 'server/*.c' 'manager/*.c' 'clients/*.c')
fi
# What needs CUDA's headers is compiled, and so looked at, only where they are; it is named.
seen=()
for file in "${files[@]}"; do
    if [[ $file == kernels/cuda/* ]] && ! grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json"; then
        echo "not built here, so not looked at: $file"
    else
        seen+=("$file")
    fi
done
files=("${seen[@]}")
analyzer=()
if [ -n "${SLUICE_TIDY_NODES:-}" ]; then
    for word in -Xclang -analyzer-config -Xclang "max-nodes=$SLUICE_TIDY_NODES"; do analyzer+=("--extra-arg=$word"); done
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-14 --quiet -p "$build" --warnings-as-errors='*' "${analyzer[@]}" 2>/dev/null
