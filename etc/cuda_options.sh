#!/usr/bin/env bash
# Prints the CMake options that build the kernels for the GPUs of this machine, or leave them out, and on stderr says why.
#
#   CUDACXX         the CUDA compiler (default: nvcc of PATH or of /usr/local/cuda)
#   SLUICE_CUDA     OFF: leave the kernels for GPUs out; REQUIRED: build them for every supported GPU; AUTO (default): see above
set -euo pipefail

how="To add them later: cmake --preset release -DSLUICE_CUDA=REQUIRED && cmake --build build/release"
leave_out() {
    echo "The kernels for GPUs are left out: $*" >&2
    echo "-DSLUICE_CUDA=OFF"
    exit 0
}

case ${SLUICE_CUDA:-AUTO} in
OFF) leave_out "SLUICE_CUDA=OFF. $how" ;;
REQUIRED)
    echo "The kernels for GPUs are built for every supported GPU: SLUICE_CUDA=REQUIRED." >&2
    echo "-DSLUICE_CUDA=REQUIRED"
    exit 0
    ;;
AUTO) ;;
*) echo "cuda_options: SLUICE_CUDA=$SLUICE_CUDA must be AUTO, OFF or REQUIRED" >&2; exit 2 ;;
esac

nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
release=$("$nvcc" --version 2>/dev/null | sed -nE 's/.*release ([0-9]+)\.([0-9]+).*/\1.\2/p' || true)
# A driver that does not work prints an error instead of a number.
mapfile -t gpus < <({ nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } | tr -d ' \r' |
    { grep -xE '[0-9]+\.[0-9]+' || true; } | sort -uV)

if [ ${#gpus[@]} -eq 0 ]; then
    [ -n "$release" ] || leave_out "this machine has neither a GPU (nvidia-smi lists none) nor a CUDA compiler."
    leave_out "nvidia-smi lists no GPU. $how"
fi
[ -n "$release" ] || leave_out "GPUs are here, but no CUDA compiler (nvcc). Install the CUDA toolkit, 12.0 or later. $how"
[ "${release%%.*}" -ge 12 ] || leave_out "$nvcc is of CUDA $release; 12.0 or later is needed. $how"

architectures=()
for gpu in "${gpus[@]}"; do
    case $gpu in # code for 8.0 runs on all of 8.x; GPUs after 9.0 compile the PTX of 9.0 at their first load
    8.9) architectures+=(89-real) ;;
    8.*) architectures+=(80-real) ;;
    9.0) architectures+=(90a-real) ;;
    [0-7].*) echo "A GPU of compute capability $gpu is not supported; 8.0 or later is needed." >&2 ;;
    *) architectures+=(90-virtual) ;;
    esac
done
[ ${#architectures[@]} -gt 0 ] || leave_out "no GPU of this machine is supported."
list=$(printf '%s\n' "${architectures[@]}" | sort -u | paste -sd ';')
echo "The kernels for GPUs are built for compute capability ${gpus[*]} ($list)." >&2
echo "-DSLUICE_CUDA=REQUIRED"
echo "-DCMAKE_CUDA_ARCHITECTURES=$list"
echo "-DCMAKE_CUDA_COMPILER=$nvcc"
