/* ptx_wgmma_f8.h: the warpgroup multiplication of E4M3 by E4M3 (ptx_wgmma.h has 16 bits, the
 * fences, and the places of sums). The sums of one chain keep 14 bits on compute capability 9.0:
 * callers end a chain after a few multiplications and add its sums in f32. */
#pragma once

#include "kernels/cuda/dense/ptx_wgmma.h"

#ifdef __CUDACC__

#define WGMMA_8_OUT(d, i)                                                                          \
    "=f"((d)[i]), "=f"((d)[(i) + 1]), "=f"((d)[(i) + 2]), "=f"((d)[(i) + 3]), "=f"((d)[(i) + 4]),  \
        "=f"((d)[(i) + 5]), "=f"((d)[(i) + 6]), "=f"((d)[(i) + 7])
#define WGMMA_32_OUT(d, i)                                                                         \
    WGMMA_8_OUT(d, i), WGMMA_8_OUT(d, (i) + 8), WGMMA_8_OUT(d, (i) + 16), WGMMA_8_OUT(d, (i) + 24)
#define WGMMA_64_OUT(d) WGMMA_32_OUT(d, 0), WGMMA_32_OUT(d, 32)

/* d[64, 128] = A[64, 32] · B[128, 32]ᵀ by four warps. */
CUDA_DEVICE void wgmma_m64n128k32_e4m3_first(float d[64], uint64_t a, uint64_t b)
{
#if WGMMA_BUILT
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" WGMMA_NAMES_64
                 "}, %64, %65, 0, 1, 1;"
                 : WGMMA_64_OUT(d)
                 : "l"(a), "l"(b)
                 : "memory");
#endif
}

/* d[64, 128] += A[64, 32] · B[128, 32]ᵀ by four warps. */
CUDA_DEVICE void wgmma_m64n128k32_e4m3(float d[64], uint64_t a, uint64_t b)
{
#if WGMMA_BUILT
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" WGMMA_NAMES_64
                 "}, %64, %65, 1, 1, 1;"
                 : WGMMA_64(d)
                 : "l"(a), "l"(b)
                 : "memory");
#endif
}

/* wgmma_wait() for these sums. */
CUDA_DEVICE void wgmma_wait_64(float d[64])
{
#if WGMMA_BUILT
    asm volatile("wgmma.wait_group.sync.aligned 0;" : WGMMA_64(d)::"memory");
#endif
}

#endif
