#!/usr/bin/env bash
# Measures streams that decode while long prompts arrive: the time between their tokens, and the wait of the prompts.
# Runs without a target, with the default target and with a target in milliseconds. Rounds are interleaved, the median
# round is printed.
#
# usage: tests/bench/mixed_load.sh BIN_DIR MODEL.gguf [SECONDS [ROUNDS]]
#
# environment: STREAMS (4), RATE of prompts a second (0.4), PROMPT tokens (500-1500), ANSWER tokens to them (4), TARGETS ("0 auto 50")
set -euo pipefail
bin=$(cd "${1:?usage: tests/bench/mixed_load.sh BIN_DIR MODEL.gguf [SECONDS [ROUNDS]]}" && pwd)
model=$(realpath "${2:?usage: tests/bench/mixed_load.sh BIN_DIR MODEL.gguf [SECONDS [ROUNDS]]}")
seconds=${3:-20}
rounds=${4:-3}
streams=${STREAMS:-4} rate=${RATE:-0.4} prompt=${PROMPT:-500-1500} answer=${ANSWER:-4} targets=${TARGETS:-0 auto 50}
dir=$(mktemp -d)
serve=
stop() {
    [ -z "$serve" ] || kill -TERM "$serve" 2>/dev/null || true
    [ -z "$serve" ] || wait "$serve" || true
    serve=
}
trap 'stop; rm -rf "$dir"' EXIT

round() { # TARGET
    local port=$((20000 + RANDOM % 10000)) flags=()
    [ "$1" = auto ] || flags=(--target-itl-ms "$1")
    "$bin/sluice" serve --state-dir "$dir/state" --listen "127.0.0.1:$port" "$model" --name m "${flags[@]}" >"$dir/serve.out" 2>&1 &
    serve=$!
    until grep -q "ready: sluice run" "$dir/serve.out"; do
        kill -0 "$serve" 2>/dev/null || { cat "$dir/serve.out" >&2; exit 1; }
        sleep 0.1
    done
    local at=(--state-dir "$dir/state" --server "127.0.0.1:$port" --json)
    "$bin/sluice" bench serve m -c 2 -r 4 -p 600 -n 32 "${at[@]}" >"$dir/warm.json" # the engine learns the cost of rows here
    "$bin/sluice" bench serve m -c "$streams" -p 32 -n 200-300 --duration "${seconds}s" "${at[@]}" >"$dir/streams.json" &
    local load=$!
    "$bin/sluice" bench serve m --rate "$rate" -p "$prompt" -n "$answer" --duration "${seconds}s" --seed 7 "${at[@]}" >"$dir/prompts.json"
    wait "$load"
    stop
    jq -rn --arg t "$1" --slurpfile s "$dir/streams.json" --slurpfile p "$dir/prompts.json" \
        '[$t, $s[0].itl_ms.p50, $s[0].itl_ms.p99, $s[0].itl_ms.p99 / $s[0].itl_ms.p50, $s[0].output_tokens_per_second, $p[0].ttft_ms.p50, $p[0].ttft_ms.p99] | @tsv' >>"$dir/rows"
}

for _ in $(seq "$rounds"); do
    for target in $targets; do round "$target"; done
done
printf '%s streams, prompts of %s tokens answered with %s, %s a second, %s s, %s rounds\n' "$streams" "$prompt" "$answer" "$rate" "$seconds" "$rounds"
printf '%-8s %10s %10s %10s %12s %14s %14s\n' target "ITL p50" "ITL p99" p99/p50 "tokens/s" "TTFT p50, ms" "TTFT p99, ms"
for target in $targets; do # the round with the median ratio
    awk -v t="$target" '$1 == t' "$dir/rows" | sort -g -k4 | sed -n "$(((rounds + 1) / 2))p" |
        awk '{ printf "%-8s %10.1f %10.1f %10.2f %12.1f %14.0f %14.0f\n", $1, $2, $3, $4, $5, $6, $7 }'
done
