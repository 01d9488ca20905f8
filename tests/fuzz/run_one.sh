#!/usr/bin/env bash
# Runs one libFuzzer program from its committed corpus: tests/fuzz/run_one.sh PROGRAM SECONDS [MIN_RUNS]. The program
# works on a copy of the corpus, so the tree stays unchanged. The program continues past SECONDS until MIN_RUNS are
# done, at most ten times as long. A crash leaves its input in build/fuzz-crashes.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:?usage: run_one.sh PROGRAM SECONDS [MIN_RUNS]}
seconds=${2:?usage: run_one.sh PROGRAM SECONDS [MIN_RUNS]}
min_runs=${3:-0}
name=$(basename "$program")
corpus=tests/fuzz/corpus/${name#fuzz_}
[ -d "$corpus" ] || { echo "$name has no corpus in $corpus" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$corpus/." "$work/"
mkdir -p build/fuzz-crashes
runs=0
for round in 1 2 3 4 5 6 7 8 9 10; do
    "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 -artifact_prefix=build/fuzz-crashes/ \
        "$work" >"$work.log" 2>&1 || { tail -n 40 "$work.log" >&2; rm -f "$work.log"; exit 1; }
    runs=$((runs + $(sed -n 's/^stat::number_of_executed_units: *//p' "$work.log")))
    cover=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$work.log" | tail -n 1)
    rm -f "$work.log"
    [ "$runs" -ge "$min_runs" ] && break
done
echo "$name: $runs runs in $round × $seconds s, $cover edges, no crash"
[ "$runs" -ge "$min_runs" ]
