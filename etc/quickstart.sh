#!/usr/bin/env bash
# From an empty machine to a streamed answer: installs the packages, builds and fetches the sample model. Then starts Sluice in a
# state directory of its own, loads the model and streams an answer.
#
#   etc/quickstart.sh ["prompt"] [--once]
#
#   --once          stop Sluice after the answer, if this run has started it.
#   SLUICE_MODEL    a GGUF file instead of the sample model.
#   SLUICE_STATE    state directory (default ~/.local/state/sluice-quickstart).
#   SLUICE_LISTEN   address of the data plane (default 127.0.0.1:8001).
#   SLUICE_CUDA     GPU kernels. AUTO (default): for the GPUs of this machine. OFF: none. REQUIRED: for all supported GPUs.
#   SLUICE_BUILD    use the programs of this build folder, and build nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

prompt="Why is the sky blue? Answer in two sentences."
once=no
for word in "$@"; do
    case "$word" in
    --once) once=yes ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "quickstart: no option $word (see --help)" >&2; exit 2 ;;
    *) prompt=$word ;;
    esac
done
state=${SLUICE_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/sluice-quickstart}
listen=${SLUICE_LISTEN:-127.0.0.1:8001}
# With another address a second instance may run: its HTTP and metrics are off unless SLUICE_HTTP_LISTEN, SLUICE_METRICS and
# SLUICE_MANAGER_METRICS are set.
if [ "$listen" != 127.0.0.1:8001 ]; then
    export SLUICE_HTTP_LISTEN=${SLUICE_HTTP_LISTEN-} SLUICE_METRICS=${SLUICE_METRICS-} SLUICE_MANAGER_METRICS=${SLUICE_MANAGER_METRICS-}
fi
build=${SLUICE_BUILD:-build/release}
started_s=$SECONDS
step() { printf '\n[%3d s] %s\n' $((SECONDS - started_s)) "$*"; }
# about CPU_SECONDS: prints the time that this much work takes on this machine's processors.
about() {
    local s=$(($1 / $(nproc)))
    if [ $s -lt 90 ]; then echo "about $s s"; else echo "about $(((s + 30) / 60)) minutes"; fi
}

# Builds, and prints a line each 10 %. A failed build prints all its lines.
build_quietly() {
    local log line n of last=-1 rc=0
    log=$(mktemp)
    # The shell reads each line at once; Debian's awk (mawk) reads a pipe in blocks of 4 KiB.
    cmake --build "$build" 2>&1 | tee "$log" | while IFS= read -r line; do
        case $line in
        *"no work to do"*) echo "the programs are up to date" ;;
        "["*/*"] Re-checking globbed directories"*) ;; # the build asks for new sources, and compiles nothing yet
        "["*/*"]"*)
            n=${line#[} of=${line#*/}
            n=${n%%/*} of=${of%%]*}
            if [ $((10 * n / of)) -gt $last ]; then
                echo "$line"
                last=$((10 * n / of))
            fi
            ;;
        esac
    done || rc=1
    [ $rc = 0 ] || cat "$log" >&2
    rm -f "$log"
    return $rc
}

step "1 of 6: packages: install missing packages (a few minutes on a new machine)"
etc/install_deps.sh build

if [ -n "${SLUICE_BUILD:-}" ]; then
    step "2 of 6: build: skipped, SLUICE_BUILD=$build has the programs"
else
    configured=yes
    mapfile -t cuda < <(etc/cuda_options.sh)
    [ ${#cuda[@]} -gt 0 ] || exit 1
    if [ ! -f "$build/build.ninja" ]; then
        configured=no
        cmake --preset release "${cuda[@]}" >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
        rm -f build-configure.log
    fi
    work_s=180 # processor time for the programs; each GPU architecture takes about as long again
    for word in "${cuda[@]}"; do
        case $word in
        -DCMAKE_CUDA_ARCHITECTURES=*) archs=${word//[!;]/}; work_s=$((work_s + 200 * (${#archs} + 1))) ;;
        -DSLUICE_CUDA=REQUIRED) [ ${#cuda[@]} -gt 1 ] || work_s=$((work_s + 800)) ;;
        esac
    done
    if [ $configured = yes ]; then
        step "2 of 6: build: update $build with its present configuration (to configure again, remove the folder)"
    else
        step "2 of 6: build: $(about $work_s) on $(nproc) processors, only the first time"
    fi
    if [ -t 1 ]; then cmake --build "$build"; else build_quietly; fi
fi
bin=$(realpath "$build")/bin
[ -x "$bin/sluice" ] || { echo "quickstart: $bin has no program sluice; check SLUICE_BUILD" >&2; exit 2; }

cached=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -n "${SLUICE_MODEL:-}" ]; then
    step "3 of 6: model: SLUICE_MODEL=$SLUICE_MODEL"
elif [ -f "$cached" ]; then
    step "3 of 6: model: the sample model is in the cache"
else
    step "3 of 6: model: download the sample model, 94 MiB, about 10 s"
fi
model=$(etc/fetch_model.sh | tail -n 1)
echo "$model"

step "4 of 6: start: manager and server, 1 s"
mkdir -p "$state"
sluice() { "$bin/sluice" "$@" --state-dir "$state"; }
name=smol # the name of the sample model in README
[ -z "${SLUICE_MODEL:-}" ] || name=$(basename "$model" .gguf | tr '[:upper:]' '[:lower:]' | tr -c 'a-z0-9._\n-' '-')
# Prints the data plane's address as the manager reports it; nothing if there is none.
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
        cat "$state/serve.out" >&2 # names the log of a program that failed
        echo "quickstart: the server does not listen on $listen; for another address set SLUICE_LISTEN=127.0.0.1:PORT" >&2
        sluice stop >/dev/null 2>&1 || true
        exit 1
    fi
    echo "manager and server run; state, sockets and logs are in $state"
fi
listen=$(address)
stop() { sluice stop >/dev/null 2>&1 || true; }
[ $once = no ] || [ $started = no ] || trap stop EXIT

step "5 of 6: load: read the model into memory, a few seconds"
sluice register "$name" "$model" --version 1
sluice load "$name" --version 1

step "6 of 6: ask: $prompt"
sluice run "$name" "$prompt" --stats --server "$listen"

if [ $once = yes ] && [ $started = yes ]; then
    stop
    trap - EXIT
    step "done: stopped Sluice (--once)"
else
    step "done. Next:"
    # The exports make all commands use this server and its state directory.
    printf '  export PATH=%q:$PATH\n  export SLUICE_STATE_DIR=%q\n' "$bin" "$state"
    cat <<TEXT
  sluice run $name "Tell me a story."
  sluice ps
  stop:  sluice stop
TEXT
    http=$(sed -n 's/.* and \(http[^,]*\),.*/\1/p' "$state/serve.out" 2>/dev/null | head -n 1)
    [ -z "$http" ] || printf '  curl %s/v1/models    # OpenAI'"'"'s API\n  %s/    # a page with a chat, for a browser\n' "$http" "$http"
fi
