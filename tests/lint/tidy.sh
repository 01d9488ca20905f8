#!/usr/bin/env bash
# clang-tidy 14 over the product's sources: tests/lint/tidy.sh BUILD_DIR [--changed | FILE...]. Checks are in .clang-tidy.
# --changed: only the files whose code the last 100 commits changed (python/changed_code.py). Moved files and rewritten
# comments do not count.
# SLUICE_TIDY_NODES: how many states the analyzer visits in each function (default 225,000). The analyzer takes nearly all the time.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: tests/lint/tidy.sh BUILD_DIR [--changed | FILE...]}
shift
files=("$@")
if [ ${#files[@]} -eq 0 ] || [ "$1" = --changed ]; then
    mapfile -t files < <(git ls-files -- 'base/*.c' 'kernels/*.c' 'engine/*.c' 'proto/*.c' 'server/*.c' 'manager/*.c' 'clients/*.c')
    if [ "${1:-}" = --changed ]; then
        n_all=${#files[@]}
        mapfile -t files < <(python3 tests/lint/python/changed_code.py "${files[@]}")
        echo "${#files[@]} of $n_all files have code of the last 100 commits"
        [ ${#files[@]} -gt 0 ] || exit 0
    fi
fi
# Files that need headers of CUDA or UCX are checked in builds that compile them. The script names the others.
seen=()
for file in "${files[@]}"; do
    if [[ $file == kernels/cuda/* || $file == kernels/comm/* ]] && ! grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json"; then
        echo "not built here, so not checked: $file"
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
