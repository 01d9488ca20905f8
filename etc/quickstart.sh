#!/usr/bin/env bash
# From nothing to a streamed answer: installs the packages, builds, fetches the sample model, starts Sluice in a state directory of its
# own, loads the model and streams an answer.
#
#   etc/quickstart.sh ["prompt"] [--once]
#
#   --once          stop what this run has started after the answer
#   SLUICE_MODEL    another GGUF file than the sample model
#   SLUICE_STATE    state directory (default ~/.local/state/sluice-quickstart)
#   SLUICE_LISTEN   address of the data plane (default 127.0.0.1:8001)
#   SLUICE_CUDA     OFF: build without the kernels for GPUs, which take some minutes where there is a CUDA compiler
set -euo pipefail
cd "$(dirname "$0")/.."

prompt="Why is the sky blue? Answer in two sentences."
once=no
for word in "$@"; do
    case "$word" in
    --once) once=yes ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "quickstart: no option $word (see --help)" >&2; exit 2 ;;
    *) prompt=$word ;;
    esac
done
state=${SLUICE_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/sluice-quickstart}
listen=${SLUICE_LISTEN:-127.0.0.1:8001}
# Another address is a second instance: its metrics need ports of their own (SLUICE_METRICS, SLUICE_MANAGER_METRICS), or none.
if [ "$listen" != 127.0.0.1:8001 ]; then
    export SLUICE_METRICS=${SLUICE_METRICS-} SLUICE_MANAGER_METRICS=${SLUICE_MANAGER_METRICS-}
fi
build=build/release
step() { printf '\n== %s\n' "$*"; }

step "packages"
etc/install_deps.sh build

step "build"
if [ ! -f "$build/build.ninja" ]; then
    # A CUDA compiler that is there is used; without one the CPU build is complete.
    if [ -x /usr/local/cuda/bin/nvcc ]; then export PATH=$PATH:/usr/local/cuda/bin; fi
    if [ "${SLUICE_CUDA:-AUTO}" = AUTO ] && command -v nvcc >/dev/null; then
        echo "a CUDA compiler is here: the kernels for GPUs take some minutes more; SLUICE_CUDA=OFF leaves them out"
    fi
    cmake --preset release -DSLUICE_CUDA="${SLUICE_CUDA:-AUTO}" >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
    rm -f build-configure.log
fi
cmake --build "$build"
bin=$PWD/$build/bin

step "model"
model=$(etc/fetch_model.sh | tail -n 1)
echo "$model"

step "start"
mkdir -p "$state"
sluice() { "$bin/sluice" "$@" --state-dir "$state"; }
name=$(basename "$model" .gguf | tr '[:upper:]' '[:lower:]' | tr -c 'a-z0-9._\n-' '-')
# The address the data plane listens on, as the manager knows it; empty while there is none.
address() { sluice status --json 2>/dev/null | sed -n 's/.*"addresses":\["\([^"]*\)".*/\1/p'; }
if [ -n "$(address)" ]; then
    echo "already running in $state, on $(address)"
    started=no
else
    setsid "$bin/sluice" serve --state-dir "$state" --listen "$listen" </dev/null >"$state/serve.out" 2>&1 &
    serve=$!
    started=yes
    for _ in $(seq 100); do
        if [ -n "$(address)" ] || ! kill -0 $serve 2>/dev/null; then break; fi
        sleep 0.1
    done
    if [ -z "$(address)" ]; then
        cat "$state/serve.out" >&2
        tail -n 3 "$state/log/server.log" >&2 || true
        echo "quickstart: the server does not listen on $listen (another address: SLUICE_LISTEN=127.0.0.1:PORT)" >&2
        sluice stop >/dev/null 2>&1 || true
        exit 1
    fi
    echo "manager and server run; state, sockets and logs are in $state"
fi
listen=$(address)
stop() { sluice stop >/dev/null 2>&1 || true; }
[ $once = no ] || [ $started = no ] || trap stop EXIT

step "load"
sluice register "$name" "$model" --version 1
sluice load "$name" --version 1

step "ask: $prompt"
sluice run "$name" "$prompt" --stats --server "$listen"

step "next"
if [ $once = yes ] && [ $started = yes ]; then
    echo "stopping (--once)"
else
    cat <<TEXT
  $bin/sluice run $name "Tell me a story." --server $listen
  $bin/sluice ps --state-dir $state
  stop:  $bin/sluice stop --state-dir $state
TEXT
fi
