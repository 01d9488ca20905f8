#!/usr/bin/env bash
# Prints CMake options: build the kernels for the GPUs of this machine, or leave them out. Prints the reason to stderr.
#
#   CUDACXX         the CUDA compiler (default: nvcc of PATH or of /usr/local/cuda)
#   SLUICE_CUDA     OFF: no kernels for GPUs. REQUIRED: kernels for all supported GPUs. AUTO (default): for this machine's GPUs.
set -euo pipefail

how="To add them later: cmake --preset release -DSLUICE_CUDA=REQUIRED && cmake --build build/release"
leave_out() {
    echo "GPU kernels are not built: $*" >&2
    echo "-DSLUICE_CUDA=OFF"
    exit 0
}

case ${SLUICE_CUDA:-AUTO} in
OFF) leave_out "SLUICE_CUDA=OFF. $how" ;;
REQUIRED)
    echo "GPU kernels are built for all supported GPUs: SLUICE_CUDA=REQUIRED." >&2
    echo "-DSLUICE_CUDA=REQUIRED"
    exit 0
    ;;
AUTO) ;;
*) echo "cuda_options: SLUICE_CUDA=$SLUICE_CUDA must be AUTO, OFF or REQUIRED" >&2; exit 2 ;;
esac

nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
release=$("$nvcc" --version 2>/dev/null | sed -nE 's/.*release ([0-9]+)\.([0-9]+).*/\1.\2/p' || true)
# A broken driver prints an error instead of a number.
mapfile -t gpus < <({ nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } | tr -d ' \r' |
    { grep -xE '[0-9]+\.[0-9]+' || true; } | sort -uV)

if [ ${#gpus[@]} -eq 0 ]; then
    [ -n "$release" ] || leave_out "nvidia-smi lists no GPU, and there is no CUDA compiler. For an NVIDIA GPU install its driver and CUDA 12.0 or later. $how"
    leave_out "nvidia-smi lists no GPU. $how"
fi
[ -n "$release" ] || leave_out "this machine has GPUs but no CUDA compiler (nvcc). Install the CUDA toolkit 12.0 or later. $how"
[ "${release%%.*}" -ge 12 ] || leave_out "$nvcc has CUDA $release. Install CUDA 12.0 or later. $how"

architectures=()
for gpu in "${gpus[@]}"; do
    case $gpu in # all 8.x GPUs run code for 8.0; newer GPUs than 9.0 compile the PTX of 9.0 at the first load
    8.9) architectures+=(89-real) ;;
    8.*) architectures+=(80-real) ;;
    9.0) architectures+=(90a-real) ;;
    [0-7].*) echo "The GPU of compute capability $gpu is not supported: Sluice needs 8.0 or later." >&2 ;;
    *) architectures+=(90-virtual) ;;
    esac
done
[ ${#architectures[@]} -gt 0 ] || leave_out "this machine has no supported GPU."
list=$(printf '%s\n' "${architectures[@]}" | sort -u | paste -sd ';')
echo "GPU kernels are built for compute capability ${gpus[*]} ($list)." >&2
echo "-DSLUICE_CUDA=REQUIRED"
echo "-DCMAKE_CUDA_ARCHITECTURES=$list"
echo "-DCMAKE_CUDA_COMPILER=$nvcc"
