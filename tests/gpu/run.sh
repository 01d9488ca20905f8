#!/usr/bin/env bash
# The CUDA backend on a machine that has a GPU and nothing else: driver, CUDA libraries, no network, no compiler.
#
#   tests/gpu/run.sh package [DIR]    on a build machine: release build, put into DIR (build/gpu) with the libraries it needs
#   tests/gpu/run.sh STAGE [DIR]      on the GPU machine: ops, model, memory, faults or bench (each at most 8 minutes)
#   tests/gpu/run.sh all [DIR]        all of them (at most 25 minutes)
#
# bench writes RESULTS.md beside this script, or into $OUT where that is set. What a machine lacks is told as
# "skip" with its reason; everything else that does not work fails.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
stage=${1:-}
dir=${2:-$root/build/gpu}
most_bytes=$((64 << 20))

usage() {
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
}

# What programs of the package need besides the C library.
copy_libraries() {
    local program
    for program in "$dir"/bin/*; do
        ldd "$program" | awk '$3 ~ /^\// {print $3}'
    done | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | while read -r library; do
        cp -L "$library" "$dir/lib/"
    done
}

package() {
    set -e
    local build=$root/build/gpu-build
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=REQUIRED \
        ${CMAKE_CUDA_ARCHITECTURES:+-DCMAKE_CUDA_ARCHITECTURES="$CMAKE_CUDA_ARCHITECTURES"} >/dev/null
    cmake --build "$build"
    rm -rf "$dir"
    mkdir -p "$dir/bin" "$dir/lib" "$dir/tests"
    cp "$build"/bin/test_gpu_* "$build"/bin/bench_cuda "$build"/bin/sluice-worker "$dir/bin/"
    cp "$build"/bin/libsluice_cuda.so "$dir/lib/"
    cp -r "$root/tests/golden" "$dir/tests/"
    rm -rf "$dir"/tests/golden/__pycache__
    copy_libraries
    strip "$dir"/bin/* "$dir"/lib/*.so*
    git -C "$root" describe --always --dirty >"$dir/COMMIT"
    local n
    n=$(du -sb "$dir" | cut -f1)
    echo "$dir: $n bytes"
    if [ "$n" -gt "$most_bytes" ]; then
        echo "more than $most_bytes bytes" >&2
        exit 1
    fi
}

failed=0
say() { printf '%s\n' "$*"; }

# run NAME SECONDS COMMAND...
run() {
    local name=$1 seconds=$2 began=$SECONDS rc
    shift 2
    timeout "$seconds" "$@"
    rc=$?
    if [ $rc -eq 0 ]; then
        say "ok    $name ($((SECONDS - began)) s)"
    else
        say "FAIL  $name: status $rc after $((SECONDS - began)) s"
        failed=1
    fi
}

prepare() {
    [ -x "$dir/bin/bench_cuda" ] || { echo "$dir has no package: tests/gpu/run.sh package" >&2; exit 1; }
    export LD_LIBRARY_PATH=$dir/lib:${LD_LIBRARY_PATH:-}
    export SLUICE_CUDA_MODULE=$dir/lib/libsluice_cuda.so
    export SLUICE_TEST_SOURCE_DIR=$dir
    if ! command -v nvidia-smi >/dev/null; then
        say "no nvidia-smi: is there a driver?"
    else
        nvidia-smi --query-gpu=name,driver_version,memory.total,memory.free,temperature.gpu --format=csv,noheader
    fi
}

ops() {
    local test
    for test in "$dir"/bin/test_gpu_*; do # _fault needs failures that the emulated GPU injects
        case $test in *_model | *_fault) ;; *) run "$(basename "$test")" 240 "$test" ;; esac
    done
    if command -v compute-sanitizer >/dev/null; then
        local tool # a short set: every kernel once, on small shapes
        for tool in memcheck racecheck synccheck; do
            run "compute-sanitizer $tool" 120 compute-sanitizer --tool $tool --error-exitcode 9 "$dir/bin/bench_cuda" --small
        done
    else
        say "skip  compute-sanitizer: not on this machine"
    fi
}

model() {
    run "test_gpu_cuda_model" 400 env SLUICE_TEST_FILTER='*logits*' "$dir/bin/test_gpu_cuda_model"
    run "test_gpu_cuda_model, bits" 400 env SLUICE_TEST_FILTER='*bits*' "$dir/bin/test_gpu_cuda_model"
    run "test_gpu_cuda_model, layers" 400 env SLUICE_TEST_FILTER='*layers*' "$dir/bin/test_gpu_cuda_model"
}

memory() {
    run "test_gpu_cuda_model, memory" 400 env SLUICE_TEST_FILTER='*memory*' "$dir/bin/test_gpu_cuda_model"
}

faults() {
    run "test_gpu_cuda_model, refusals" 120 env SLUICE_TEST_FILTER='*refused*' "$dir/bin/test_gpu_cuda_model"
}

bench() {
    local results=${OUT:-$here}/RESULTS.md
    {
        echo "# The CUDA backend on a GPU"
        echo
        echo "Printed by \`tests/gpu/run.sh bench\`; each figure is the median of 7 replays."
        echo
        echo "Device: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo unknown)."
        echo "Date: $(date -u +%Y-%m-%d). Commit: $(cat "$dir/COMMIT")."
        echo
    } >"$results"
    run "bench" 480 bash -o pipefail -c "'$dir/bin/bench_cuda' --directory '${TMPDIR:-/tmp}' | tee -a '$results'"
    if python3 -c 'import torch, transformers' 2>/dev/null; then
        run "transformers on the same card" 240 bash -o pipefail -c "python3 '$here/bench_transformers.py' | tee -a '$results'"
    else
        say "skip  transformers: Python here has no torch and transformers" | tee -a "$results"
    fi
    say "written to $results"
}

case $stage in
package) package; exit ;;
ops | model | memory | faults | bench) prepare; $stage ;;
all) prepare; ops; model; memory; faults; bench ;;
*) usage ;;
esac
exit $failed
