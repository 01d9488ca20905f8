#!/usr/bin/env bash
# Decodes one sequence of a model in every format, with Sluice and llama.cpp in turn. Prints medians of tokens a second,
# smallest and largest, and the ratio of the two programs.
#
# usage: tests/bench/peers/formats.sh BIN_DIR LLAMA_BENCH [FORMAT...]
#
# LLAMA_BENCH: as tests/bench/peers.sh --install builds it, below ~/.cache/sluice/peers/llama.cpp-*/build-*/bin
#
# environment: SHAPE (1.1b), THREADS (2), TOKENS (40), RUNS (5)
#
# example: RUNS=3 tests/bench/peers/formats.sh build/release/bin ~/.cache/sluice/peers/llama.cpp-*/build-*/bin/llama-bench Q6_K Q2_K
set -euo pipefail
usage="usage: tests/bench/peers/formats.sh BIN_DIR LLAMA_BENCH [FORMAT...]"
bin=$(cd "${1:?$usage}" && pwd)
llama=$(realpath "${2:?$usage}")
shift 2
shape=${SHAPE:-1.1b} threads=${THREADS:-2} tokens=${TOKENS:-40} runs=${RUNS:-5}
cd "$(dirname "$0")/../../.."
formats=("$@")
[ $# -gt 0 ] || formats=(Q4_0 Q4_1 Q4_K_M Q5_0 Q5_1 Q5_K Q6_K Q3_K Q2_K Q8_0 F16 BF16 F32)
[ -x "$llama" ] || { echo "formats.sh: $llama cannot be run: tests/bench/peers.sh --install builds it" >&2; exit 1; }
tests/support/venv.sh build/venv >/dev/null

ours() { "$bin/sluice-worker" bench "$1" --text -t "$threads" -p 0 -n "$tokens" -r 1 | awk '$1 == "tokens_per_second:" { print $2 }'; }
theirs() { "$llama" -m "$1" -t "$threads" -p 0 -n "$tokens" -r 1 -o json 2>/dev/null | awk -F '[:,]' '/"avg_ts"/ { print $2 + 0 }'; }

# median_of WORD: of the lines `WORD value` on standard input, as `median smallest largest`.
median_of() {
    awk -v w="$1" '$1 == w { print $2 }' | sort -g |
        awk '{ v[NR] = $1 } END { if (NR == 0) exit 1; print v[int((NR + 1) / 2)], v[1], v[NR] }'
}

printf '%s shape, %s threads, %s tokens, %s runs in turn; load %s\n' "$shape" "$threads" "$tokens" "$runs" "$(cut -d ' ' -f 1 /proc/loadavg)"
printf '%-8s %24s %24s %7s\n' format "Sluice, tokens/s" "llama.cpp" ratio
for format in "${formats[@]}"; do
    model=$(build/venv/bin/python tests/bench/make_model.py --shape "$shape" --format "$format" 2>/dev/null)
    rows=$(for _ in $(seq "$runs"); do
        echo "ours $(ours "$model")"
        echo "theirs $(theirs "$model")"
    done)
    read -r a a_low a_high < <(median_of ours <<<"$rows")
    read -r b b_low b_high < <(median_of theirs <<<"$rows")
    awk -v f="$format" -v a="$a" -v al="$a_low" -v ah="$a_high" -v b="$b" -v bl="$b_low" -v bh="$b_high" \
        'BEGIN { printf "%-8s %24s %24s %7.2f\n", f, sprintf("%.1f (%.1f-%.1f)", a, al, ah), sprintf("%.1f (%.1f-%.1f)", b, bl, bh), a / b }'
done
