#!/usr/bin/env bash
# From nothing to a streamed answer: installs the packages, builds, fetches the sample model, starts Sluice in a state directory of its
# own, loads the model and streams an answer.
#
#   etc/quickstart.sh ["prompt"] [--once]
#
#   --once          stop everything after the answer
#   SLUICE_MODEL    another GGUF file than the sample model
#   SLUICE_STATE    state directory (default ~/.local/state/sluice-quickstart)
#   SLUICE_LISTEN   address of the data plane (default 127.0.0.1:8001)
set -euo pipefail
cd "$(dirname "$0")/.."

prompt="Why is the sky blue? Answer in two sentences."
once=no
for word in "$@"; do
    case "$word" in
    --once) once=yes ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "quickstart: no option $word (see --help)" >&2; exit 2 ;;
    *) prompt=$word ;;
    esac
done
state=${SLUICE_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/sluice-quickstart}
listen=${SLUICE_LISTEN:-127.0.0.1:8001}
build=build/release
step() { printf '\n== %s\n' "$*"; }

step "packages"
etc/install_deps.sh build

step "build"
if [ -f "$build/build.ninja" ]; then
    cmake --build "$build" -- --quiet 2>&1 | tail -n 3
else
    # A CUDA compiler that is there is used; without one the CPU build is complete.
    if [ -x /usr/local/cuda/bin/nvcc ]; then export PATH=$PATH:/usr/local/cuda/bin; fi
    cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
    rm -f build-configure.log
    cmake --build "$build"
fi
bin=$PWD/$build/bin

step "model"
model=$(etc/fetch_model.sh | tail -n 1)
echo "$model"

step "start"
mkdir -p "$state"
sluice() { "$bin/sluice" "$@" --state-dir "$state"; }
name=$(basename "$model" .gguf | tr '[:upper:]' '[:lower:]' | tr -c 'a-z0-9._-\n' '-')
if sluice status >/dev/null 2>&1; then
    echo "already running in $state"
else
    setsid "$bin/sluice" serve --state-dir "$state" --listen "$listen" </dev/null >"$state/serve.out" 2>&1 &
    for _ in $(seq 100); do
        if sluice status >/dev/null 2>&1; then break; fi
        if ! kill -0 $! 2>/dev/null; then cat "$state/serve.out" >&2; exit 1; fi
        sleep 0.1
    done
    sluice status >/dev/null || { cat "$state/serve.out" >&2; exit 1; }
    echo "manager and server run; state, sockets and logs are in $state"
fi
stop() { sluice stop >/dev/null 2>&1 || true; }
[ $once = no ] || trap stop EXIT

step "load"
sluice register "$name" "$model" --version 1
sluice load "$name" --version 1

step "ask: $prompt"
sluice run "$name" "$prompt" --stats --server "$listen"

step "next"
if [ $once = yes ]; then
    echo "stopping (--once)"
else
    cat <<TEXT
  $bin/sluice run $name "Tell me a story." --server $listen
  $bin/sluice ps --state-dir $state
  stop:  $bin/sluice stop --state-dir $state
TEXT
fi
