#!/usr/bin/env bash
# Compares Sluice with llama-server under the same load over OpenAI's HTTP API. The command `sluice bench serve --http` puts
# the load on each server in turn. Both have the same model and the same prompts. llama-server runs with its best settings.
# Prints ratios of tokens/s, TTFT and ITL. --help lists the options.
set -euo pipefail
cd "$(dirname "$0")/../../.."
for word in "$@"; do
    case $word in -h | --help) exec python3 tests/bench/openai/openai_peers.py --help ;; esac
done
tests/support/venv.sh build/venv
exec build/venv/bin/python tests/bench/openai/openai_peers.py "$@"
