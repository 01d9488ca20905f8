/* ptx_wgmma.h: the warpgroup multiplication of compute capability 9.0 (sm_90a alone), a function
 * per instruction. Source: PTX ISA 8.x, sections "Asynchronous Warpgroup Level Matrix
 * Instructions", "Shared Memory Matrix Layout", "fence.proxy.async". Both operands lie in shared
 * memory, k along a row; wgmma_matrix() (dense_index.h) describes them. Sums of warp w of four, and
 * of its lane (g = lane / 4, t = lane % 4):
 *
 *   d[4j], d[4j+1]   row 16w + g, columns 8j + 2t, 8j + 2t + 1
 *   d[4j+2], d[4j+3] row 16w + g + 8
 *
 * All 128 threads follow this order. Each writer of shared memory makes its writes visible
 * (wgmma_fence_shared); then a barrier; then wgmma_fence, multiplications, wgmma_commit. Until
 * wgmma_wait returns, neither sums nor operands may be touched. The emulation for the CPU
 * (tests/simt/simt_wgmma.h) ends the process if the order is broken. */
#pragma once

#include "kernels/cuda/dense_index.h"
#include "kernels/cuda/thread.h"

#ifndef __CUDACC__

#include <simt_wgmma.h>

#else

/* 1 if the code is compiled for a device with these instructions. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA_BUILT 1
#else
#define WGMMA_BUILT 0
#endif

/* Returns the address for a descriptor. */
CUDA_DEVICE uint32_t wgmma_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Makes this thread's writes and finished copies to shared memory visible to multiplications that
 * begin after a barrier. */
CUDA_DEVICE void wgmma_fence_shared(void)
{
#if WGMMA_BUILT
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Call before the first of a group of multiplications. */
CUDA_DEVICE void wgmma_fence(void)
{
#if WGMMA_BUILT
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

CUDA_DEVICE void wgmma_commit(void)
{
#if WGMMA_BUILT
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

#define WGMMA_8(d, i)                                                                              \
    "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]),  \
        "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define WGMMA_32(d, i)                                                                             \
    WGMMA_8(d, i), WGMMA_8(d, (i) + 8), WGMMA_8(d, (i) + 16), WGMMA_8(d, (i) + 24)
#define WGMMA_128(d) WGMMA_32(d, 0), WGMMA_32(d, 32), WGMMA_32(d, 64), WGMMA_32(d, 96)
#define WGMMA_NAMES                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"

/* Waits until at most one committed group is running; its sums may not be touched yet. */
CUDA_DEVICE void wgmma_wait_but_one(void)
{
#if WGMMA_BUILT
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#endif
}

/* Waits until all groups have ended; the sums are then valid. */
CUDA_DEVICE void wgmma_wait(float d[128])
{
#if WGMMA_BUILT
    asm volatile("wgmma.wait_group.sync.aligned 0;" : WGMMA_128(d)::"memory");
#endif
}

/* d[64, 256] += A[64, 16] · B[256, 16]ᵀ by four warps. */
#if WGMMA_BUILT
#define WGMMA_FLOAT(name, types)                                                                   \
    CUDA_DEVICE void name(float d[128], uint64_t a, uint64_t b)                                    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." types " {" WGMMA_NAMES         \
                     "}, %128, %129, 1, 1, 1, 0, 0;"                                               \
                     : WGMMA_128(d)                                                                \
                     : "l"(a), "l"(b)                                                              \
                     : "memory");                                                                  \
    }
#else
#define WGMMA_FLOAT(name, types)                                                                   \
    CUDA_DEVICE void name(float *, uint64_t, uint64_t)                                             \
    {                                                                                              \
    }
#endif
WGMMA_FLOAT(wgmma_m64n256k16_bf16, "bf16.bf16")
WGMMA_FLOAT(wgmma_m64n256k16_f16, "f16.f16")
#undef WGMMA_FLOAT

#endif
