/* thread.h: what a kernel's code is written in: C++ as nvcc has it, whose threads know who they
 * are, share memory and exchange words within a warp. Without nvcc the same names come from
 * tests/simt/simt_thread.h, which runs whole kernels on the CPU, thread by thread: the only way in
 * which a kernel is checked where there is no GPU. Kernels keep to what is named here and in ptx.h:
 *
 *   threadIdx blockIdx blockDim gridDim   __syncthreads __syncwarp   __shfl_sync __shfl_xor_sync
 *   __shfl_down_sync __ballot_sync __any_sync __all_sync   __ldg __ldcg   __threadfence
 *   atomicAdd (i32, u32) atomicMax   __byte_perm   __float_as_uint __uint_as_float   make_uint4
 *
 * with all 32 lanes in every exchange. Included by .cu files and the headers that only they read.
 */
#pragma once

#include <math.h>

#include "kernels/cuda/index.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

/* Queues a kernel; the value is a cudaError_t as an int. `grid` is a dim3 or a number. */
#define CUDA_LAUNCH(kernel, grid, n_threads, shared_bytes, stream, ...)                            \
    (kernel<<<(grid), (n_threads), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__),         \
     (int)cudaGetLastError())

/* Lets a kernel have so much dynamic shared memory; needed above 48 KiB, once per device. */
#define CUDA_ALLOW_SHARED(kernel, n_bytes)                                                         \
    ((int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (n_bytes)))

/* The launch's dynamic shared memory, 128-byte aligned, declared within a kernel. */
#define CUDA_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

#define CUDA_DEVICE __device__ static __forceinline__

#else

#include <simt_thread.h>

#define CUDA_DEVICE static inline

#endif
