#!/usr/bin/env bash
# Tests run.sh without a GPU: its package out of a build, and stages of the package on the emulated GPU. Also tests the
# messages of a stage that exceeds its time or lacks programs.
#
#   tests/gpu/emulated.sh BUILD STAGE...
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
dir=$build/gpu-emulated
export SLUICE_TEST_EMULATED_GPU=1 SLUICE_TEST_JOBS=${SLUICE_TEST_JOBS:-6} SLUICE_CUDA_MODULE=$build/simt/libsluice_cuda_simt.so SLUICE_CUDA_LIBRARY_PATH=$build/simt/lt
export SLUICE_GPU_PROBE=$build/simt/libgpu_probe_simt.so
export SLUICE_GPU_STAGE_S=${SLUICE_GPU_STAGE_S:-1800} SLUICE_GPU_ALL_S=${SLUICE_GPU_ALL_S:-7200} OUT=$dir/out TMPDIR=$dir
unset LD_LIBRARY_PATH SLUICE_TEST_FILTER
SLUICE_GPU_BUILD=$build "$here/run.sh" package "$dir" >/dev/null || exit 1
cd / || exit 1
for stage in "$@"; do "$dir/run.sh" "$stage" || exit 1; done
# A section for each stage, in the stages' order, that tells what was run; one that runs again replaces its own.
wanted=$(for stage in ops model memory faults serve bench; do [[ " $* " == *" all "* || " $* " == *" $stage "* ]] && echo "## $stage"; done)
[ "$(grep '^## ' "$OUT/RESULTS.md")" = "$wanted" ] || { echo "RESULTS.md has other sections than $wanted" && exit 1; }
grep -q '^- ok ' "$OUT/RESULTS.md" || exit 1
grep -q "Commit: $(cat "$dir/COMMIT")" "$OUT/RESULTS.md" || exit 1
[ "$("$dir/run.sh" join "$OUT/RESULTS.md" "$OUT/RESULTS.md")" = "$(cat "$OUT/RESULTS.md")" ] || { echo "join changes it" && exit 1; }
tar -tzf "$dir.tar.gz" ./run.sh ./bin/sluice-worker ./COMMIT >/dev/null || exit 1
if SLUICE_GPU_STAGE_S=0 "$dir/run.sh" faults >"$dir/over"; then echo "a stage without time passed" && exit 1; fi
grep -q "FAIL .*not run, the stage's time is over" "$dir/over" || exit 1
grep -q "FAIL .*not run, the stage's time is over" "$OUT/RESULTS.md" || { echo "RESULTS.md does not tell of it" && exit 1; }
mv "$dir/bin/test_gpu_cuda_fault" "$dir/bin/away"
if "$dir/run.sh" faults >"$dir/lacks" 2>&1; then echo "a stage without a program passed" && exit 1; fi
grep -q "FAIL  test_gpu_cuda_fault" "$dir/lacks" || exit 1
mv "$dir/bin/away" "$dir/bin/test_gpu_cuda_fault"
[ "$(grep -c '^## faults$' "$OUT/RESULTS.md")" -eq 1 ] || { echo "RESULTS.md has a stage twice" && exit 1; }
