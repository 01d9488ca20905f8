#!/usr/bin/env bash
# clang-tidy 14 over the product's sources: tests/lint/tidy.sh BUILD_DIR [FILE...]. Checks are in .clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: tests/lint/tidy.sh BUILD_DIR [FILE...]}
shift
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(git ls-files -- 'base/*.c' 'kernels/*.c' 'engine/*.c' 'proto/*.c' 'server/*.c' 'manager/*.c' 'clients/*.c')
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-14 --quiet -p "$build" --warnings-as-errors='*' 2>/dev/null
