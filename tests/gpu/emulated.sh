#!/usr/bin/env bash
# run.sh itself, as a machine with a GPU runs it: its package out of a build, stages of it in the emulated GPU, and what a stage says
# whose time is over or that lacks its programs.
#   tests/gpu/emulated.sh BUILD STAGE...
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
dir=$build/gpu-emulated
export SLUICE_TEST_EMULATED_GPU=1 SLUICE_CUDA_MODULE=$build/simt/libsluice_cuda_simt.so SLUICE_CUDA_LIBRARY_PATH=$build/simt/lt
export SLUICE_GPU_STAGE_S=${SLUICE_GPU_STAGE_S:-1800} SLUICE_GPU_ALL_S=${SLUICE_GPU_ALL_S:-7200} OUT=$dir/out TMPDIR=$dir
unset LD_LIBRARY_PATH SLUICE_TEST_FILTER
SLUICE_GPU_BUILD=$build "$here/run.sh" package "$dir" >/dev/null || exit 1
cd / || exit 1
for stage in "$@"; do "$dir/run.sh" "$stage" || exit 1; done
if SLUICE_GPU_STAGE_S=0 "$dir/run.sh" faults >"$dir/over"; then echo "a stage without time passed" && exit 1; fi
grep -q "FAIL .*not run, the stage's time is over" "$dir/over" || exit 1
mv "$dir/bin/test_gpu_cuda_fault" "$dir/bin/away"
if "$dir/run.sh" faults >"$dir/lacks" 2>&1; then echo "a stage without a program passed" && exit 1; fi
grep -q "FAIL  test_gpu_cuda_fault" "$dir/lacks"
