/* thread.h: the environment of kernel code: C++ as compiled by nvcc. Threads know their indices,
 * share memory and exchange words within a warp. Without nvcc tests/simt/simt_thread.h defines the
 * same names and runs whole kernels on the CPU, thread by thread. That is the only check of kernels
 * without a GPU. Kernels use only the names here and in ptx.h:
 *
 *   threadIdx blockIdx blockDim gridDim   __syncthreads __syncwarp   __shfl_sync __shfl_xor_sync
 *   __shfl_down_sync __ballot_sync __any_sync __all_sync   __ldg __ldcg   __threadfence
 *   atomicAdd (i32, u32) atomicMax   __byte_perm   __float_as_uint __uint_as_float   make_uint4
 *
 * with all 32 lanes in every exchange. Included by .cu files and the headers that only they
 * include.
 *
 * A kernel may start while the previous op still runs (overlap.h). So every thread of a kernel
 * calls cuda_op_begin() before it touches memory that any op writes. This holds for writes too,
 * because the memory may still be read. Before the call a kernel reads weights and tables alone. A
 * kernel that needs nothing of the previous op also waits. The next kernel waits for it, and relies
 * on the end of all earlier ops. The lint tests/lint/kernels.sh checks for the call. The emulated
 * GPU checks that each thread makes the call, and runs the code before it early. */
#pragma once

#include <math.h>

#include "kernels/cuda/index.h"
#include "kernels/cuda/overlap.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

template <typename... Parameters, typename... Arguments>
static inline int cuda_launch(void (*kernel)(Parameters...), dim3 grid, uint32_t n_threads,
                              size_t shared_bytes, void *stream, Arguments... arguments)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(n_threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &overlap;
    config.numAttrs = overlap_of_thread() ? 1 : 0;
    cudaError_t code = cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
    cudaError_t kept = cudaGetLastError(); /* otherwise the next call would report this error too */
    return (int)(code != cudaSuccess ? code : kept);
}

/* Queues a kernel; the value is a cudaError_t as an int. `grid` is a dim3 or a number. */
#define CUDA_LAUNCH(kernel, grid, n_threads, shared_bytes, stream, ...)                            \
    cuda_launch(kernel, (grid), (n_threads), (shared_bytes), (stream), __VA_ARGS__)

/* Allows a kernel n_bytes of dynamic shared memory; needed above 48 KiB, once per device. */
#define CUDA_ALLOW_SHARED(kernel, n_bytes)                                                         \
    ((int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (n_bytes)))

/* Declares the launch's dynamic shared memory, 128-byte aligned, within a kernel. */
#define CUDA_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

#define CUDA_DEVICE __device__ static __forceinline__

/* Returns when all earlier ops have ended and their writes are visible. From then on the next
 * queued op may start. Source: PTX ISA 7.8, "griddepcontrol". */
CUDA_DEVICE void cuda_op_begin(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#else

#include <simt_thread.h>

#define CUDA_LAUNCH(kernel, grid, n_threads, shared_bytes, stream, ...)                            \
    SIMT_LAUNCH(kernel, overlap_of_thread() ? SIMT_OVERLAPS : SIMT_WAITS, (grid), (n_threads),     \
                (shared_bytes), (stream), __VA_ARGS__)

#define CUDA_DEVICE static inline

CUDA_DEVICE void cuda_op_begin(void)
{
    simt_op_begin();
}

#endif
