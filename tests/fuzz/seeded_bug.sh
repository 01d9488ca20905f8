#!/usr/bin/env bash
# Shows that the fuzzer finds a planted bug. seeded_gguf is fuzz_gguf with the bug "gguf_bounds": engine/format/gguf.c
# without the limit on a tensor's dimensions. The program must crash within 60 seconds from the committed corpus without
# five_dimensions.
# usage: tests/fuzz/seeded_bug.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/fuzz}
limit_s=60
cmake --build "$build" --target seeded_gguf >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp tests/fuzz/corpus/gguf/* "$work/"
rm "$work/five_dimensions" # shows the bug at once; tests/run.sh replays it
program=$build/bin/seeded_gguf
start=$(date +%s)
if timeout $((limit_s + 30)) "$program" -max_total_time=$limit_s -max_len=4096 -timeout=10 \
    -artifact_prefix="$work/" "$work" >"$work/log" 2>&1; then
    echo "seeded bug gguf_bounds: NOT found in ${limit_s} s" >&2
    tail -5 "$work/log" >&2
    exit 1
fi
if ! grep -q 'gguf.c:.*runtime error: index' "$work/log"; then
    echo "seeded bug gguf_bounds: the fuzzer ended for another reason" >&2
    tail -20 "$work/log" >&2
    exit 1
fi
echo "seeded bug gguf_bounds: found after $(($(date +%s) - start)) s"
