#!/usr/bin/env bash
# Folders are ordered, and includes go only down (docs/house/map.md). Prints every include that goes up.
set -euo pipefail
cd "$(dirname "$0")/../.."

bad=0
# deny FOLDERS PATTERN WHY: no source below FOLDERS may include what matches PATTERN.
deny() {
    local hits
    # shellcheck disable=SC2086
    hits=$(grep -rnE "#[[:space:]]*include[[:space:]]*[<\"]($2)" --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' $1 || true)
    if [ -n "$hits" ]; then
        printf '%s: %s\n%s\n' "$1" "$3" "$hits"
        bad=1
    fi
}

upper='server/|manager/|clients/|tests/'
deny base "(kernels|engine|proto|sluice)/|$upper" "base is the ground floor"
deny kernels "(engine|proto|sluice)/|$upper" "kernels know tensors, not models"
deny engine "(proto|sluice)/|$upper" "the engine is an embeddable library: no wire, no programs"
deny proto "(engine|kernels)/|$upper" "the wire knows neither engine nor programs"
deny server/gateway "engine/|kernels/|manager/|clients/|server/worker/|tests/" "the gateway links no engine"
deny server/worker "manager/|clients/|server/gateway/|tests/" "the worker knows neither manager nor gateway"
deny manager "engine/|kernels/|server/|clients/|tests/" "the manager links no engine"
deny clients "engine/|kernels/|server/|manager/|tests/" "clients speak the wire only"
deny "base kernels engine" "grpc|protobuf-c|sqlite3|ev\.h" "no wire, store or event loop below proto"
deny "server manager clients" "grpc/" "only proto/rpc touches gRPC core"
deny "base engine proto server manager clients" "cuda|cublas|nccl" "only kernels/cuda and kernels/comm see CUDA and NCCL"
deny "base engine proto server manager clients kernels/cpu kernels/cuda" "(ucp|uct|ucs)/" "only kernels/comm sees UCX headers"
deny "kernels/cpu" "cuda|cublas|nccl" "only kernels/cuda and kernels/comm see CUDA and NCCL"

# server/worker may include only four headers of the engine. The main one must stay short.
hits=$(grep -rnE '#[[:space:]]*include[[:space:]]*"engine/' --include='*.c' --include='*.h' server/worker |
    grep -vE '"engine/engine(_config|_cost|_facts|_splits|_stats)?\.h"' || true)
if [ -n "$hits" ]; then
    printf 'server/worker: of the engine only engine.h and engine_{config,cost,facts,splits,stats}.h\n%s\n' "$hits"
    bad=1
fi
if [ "$(wc -l <engine/engine.h)" -gt 200 ]; then
    echo "engine/engine.h: over 200 lines"
    bad=1
fi

exit $bad
