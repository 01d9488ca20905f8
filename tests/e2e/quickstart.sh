#!/usr/bin/env bash
# README's first command, etc/quickstart.sh.
#
#   quickstart.sh BUILD    with the programs of a build folder. Also tests the choice of GPU kernels, with a fake nvidia-smi.
#
#   quickstart.sh          on a copy of the tree that was never built. The first answer costs at most 8 minutes of
#                          processor time, so 4 minutes on 2 processors that do nothing else.
#                          The second run takes under 15 s.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
build=
cleanup() {
    [ -z "$build" ] || "$build/bin/sluice" stop --state-dir "$work/state" >"$work/stop.txt" 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
export SLUICE_STATE=$work/state SLUICE_LISTEN=127.0.0.1:$((20000 + RANDOM % 20000))

answers() { # answers LOG: one run that streams an answer
    etc/quickstart.sh "Why is the sky blue?" --once 2>&1 | tee "$1"
    grep -qi sky <(sed '1,/ 6 of 6/d' "$1")
}

# chooses OPTIONS GPU...: asserts that cuda_options.sh prints OPTIONS if nvidia-smi lists GPUs of these compute
# capabilities.
chooses() {
    local wanted=$1 found
    shift
    printf '#!/bin/sh\nprintf "%%s\\n" %s\n' "$*" >"$work/stub/nvidia-smi"
    found=$(PATH=$work/stub:$PATH etc/cuda_options.sh 2>/dev/null | grep -v '^-DCMAKE_CUDA_COMPILER=' | paste -sd ' ')
    [ "$found" = "$wanted" ] || { echo "GPUs \"$*\": \"$found\", expected \"$wanted\""; exit 1; }
}

# Prints the seconds of processor time that the script's children have used.
used() {
    times >"$work/times.txt"
    awk 'NR == 2 { split($1 "m" $2, at, /[ms]+/); printf "%d\n", at[1] * 60 + at[2] + at[3] * 60 + at[4] }' "$work/times.txt"
}

choices() {
    local built=-DSLUICE_CUDA=REQUIRED archs=-DCMAKE_CUDA_ARCHITECTURES
    mkdir "$work/stub"
    printf '#!/bin/sh\necho "Cuda compilation tools, release ${FAKE_CUDA:-13.0}, V"\n' >"$work/stub/nvcc"
    chmod +x "$work/stub/nvcc"
    touch "$work/stub/nvidia-smi" && chmod +x "$work/stub/nvidia-smi"
    unset SLUICE_CUDA CUDACXX
    chooses "-DSLUICE_CUDA=OFF"
    chooses "-DSLUICE_CUDA=OFF" 7.5
    chooses "-DSLUICE_CUDA=OFF" "No devices were found"
    chooses "$built $archs=90a-real" 9.0 9.0
    chooses "$built $archs=80-real" 8.6 8.0
    chooses "$built $archs=80-real;89-real" 7.5 8.9 8.0
    chooses "$built $archs=90-virtual" 12.0 10.0
    FAKE_CUDA=11.8 chooses "-DSLUICE_CUDA=OFF" 9.0
    CUDACXX=/bin/false chooses "-DSLUICE_CUDA=OFF" 9.0
    SLUICE_CUDA=OFF chooses "-DSLUICE_CUDA=OFF" 9.0
    SLUICE_CUDA=REQUIRED chooses "$built"
    ! SLUICE_CUDA=MAYBE etc/cuda_options.sh 2>/dev/null || { echo "SLUICE_CUDA=MAYBE was accepted"; exit 1; }
}

# The exports under "Next" reach the server that the quickstart has started, under the model name of README. The symptom was that
# `run` found this server, but `ls` and `ps` looked into the default state directory.
goes_on() {
    local model
    SLUICE_BUILD=$build etc/quickstart.sh "Why is the sky blue?" 2>&1 | tee "$work/stays.txt"
    grep '^  export ' "$work/stays.txt" >"$work/exports"
    unset SLUICE_STATE SLUICE_LISTEN
    . "$work/exports"
    model=smol
    [ -z "${SLUICE_MODEL:-}" ] || model=$(basename "$SLUICE_MODEL" .gguf | tr '[:upper:]' '[:lower:]')
    sluice run "$model" "The sky is" --max-tokens 4
    sluice ls --json | grep -F "\"$model\""
    sluice ps --json | grep -F "\"$model\""
    sluice stop
}

if [ $# -gt 0 ]; then
    build=$(realpath "$1")
    choices
    SLUICE_BUILD=$build answers "$work/built.txt"
    goes_on
    exit 0
fi
git ls-files -z | grep -zv '^tests/golden/' | xargs -0 cp --parents -t "$work" 2>/dev/null
cd "$work"
started=$SECONDS
answers first.txt
took=$(used)
echo "first answer: $((SECONDS - started)) s, $took s of processor time"
[ "$took" -lt 480 ]
! grep 'warning:' first.txt || exit 1
started=$SECONDS
answers second.txt
took=$((SECONDS - started))
echo "second run: $took s"
[ $took -lt 15 ]
