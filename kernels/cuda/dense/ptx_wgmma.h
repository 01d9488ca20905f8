/* ptx_wgmma.h: the warpgroup multiplication of compute capability 9.0 (sm_90a alone), a function
 * per instruction. Source: PTX ISA 8.x, sections "Asynchronous Warpgroup Level Matrix
 * Instructions", "Shared Memory Matrix Layout", "fence.proxy.async". B lies in shared memory, A in
 * shared memory or in registers. Rows along k are described by wgmma_matrix() (dense_index.h). The
 * functions with "turned" take a B whose rows lie along n (attention_wgmma_index.h describes it).
 * Sums, and A in registers, of warp w of four and of its lane (g = lane / 4, t = lane % 4):
 *
 *   d[4j], d[4j+1]   row 16w + g, columns 8j + 2t, 8j + 2t + 1
 *   d[4j+2], d[4j+3] row 16w + g + 8
 *   a[0] (row 16w + g, columns 2t, 2t+1)  a[1] row + 8  a[2] columns + 8  a[3] both
 *
 * All 128 threads follow this order. Each writer of shared memory makes its writes visible
 * (wgmma_fence_shared); then a barrier; then wgmma_fence, multiplications, wgmma_commit. Until
 * a wait returns, neither sums nor operands may be touched. After wgmma_wait_but_one() and
 * wgmma_wait_all(), wgmma_settle() names the sums that are valid. The emulation for the CPU
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

CUDA_DEVICE void wgmma_wait_all(void)
{
#if WGMMA_BUILT
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

/* Call after the wait for the multiplications on d, before d is used. */
template <uint32_t N> CUDA_DEVICE void wgmma_settle(float (&d)[N])
{
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Call after the wait for multiplications with A in these registers, before they change. */
template <uint32_t N> CUDA_DEVICE void wgmma_keep(uint32_t (&a)[N])
{
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

/* Returns x. Compilers do not keep values that they computed from an earlier x, which would take
 * registers in a loop. */
CUDA_DEVICE uint32_t wgmma_again(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

#define WGMMA_64(d) WGMMA_32(d, 0), WGMMA_32(d, 32)
#define WGMMA_NAMES_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_64                                                                             \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
                   "%62, %63"

/* d[64, 128] = A[64, 16] · B[128, 16]ᵀ, plus d if `adds`. */
#if WGMMA_BUILT
#define WGMMA_FLOAT(name, types)                                                                   \
    CUDA_DEVICE void name(float d[64], uint64_t a, uint64_t b, bool adds)                          \
    {                                                                                              \
        asm volatile("{.reg .pred adds;\n"                                                         \
                     "setp.ne.b32 adds, %66, 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {" WGMMA_NAMES_64      \
                     "}, %64, %65, adds, 1, 1, 0, 0;}"                                             \
                     : WGMMA_64(d)                                                                 \
                     : "l"(a), "l"(b), "r"((int)adds)                                              \
                     : "memory");                                                                  \
    }
/* d[64, N] += A[64, 16] · B[16, N], A in registers, rows of B along n. */
#define WGMMA_TURNED(name, n, types, sums, names, a0, a1, a2, a3, b0)                              \
    CUDA_DEVICE void name(float d[n / 2], const uint32_t a[4], uint64_t b)                         \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" names "}, {" a0  \
                     ", " a1 ", " a2 ", " a3 "}, " b0 ", 1, 1, 1, 1;"                              \
                     : sums                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                          \
                     : "memory");                                                                  \
    }
#else
#define WGMMA_FLOAT(name, types)                                                                   \
    CUDA_DEVICE void name(float *, uint64_t, uint64_t, bool)                                       \
    {                                                                                              \
    }
#define WGMMA_TURNED(name, n, types, sums, names, a0, a1, a2, a3, b0)                              \
    CUDA_DEVICE void name(float *, const uint32_t *, uint64_t)                                     \
    {                                                                                              \
    }
#endif
#define WGMMA_TURNED_128(name, types)                                                              \
    WGMMA_TURNED(name, 128, types, WGMMA_64(d), WGMMA_NAMES_64, "%64", "%65", "%66", "%67", "%68")
#define WGMMA_TURNED_64(name, types)                                                               \
    WGMMA_TURNED(name, 64, types, WGMMA_32(d, 0), WGMMA_NAMES_32, "%32", "%33", "%34", "%35", "%36")
WGMMA_FLOAT(wgmma_m64n128k16_bf16, "bf16.bf16")
WGMMA_FLOAT(wgmma_m64n128k16_f16, "f16.f16")
WGMMA_TURNED_128(wgmma_turned_m64n128k16_bf16, "bf16.bf16")
WGMMA_TURNED_128(wgmma_turned_m64n128k16_f16, "f16.f16")
WGMMA_TURNED_64(wgmma_turned_m64n64k16_bf16, "bf16.bf16")
WGMMA_TURNED_64(wgmma_turned_m64n64k16_f16, "f16.f16")
#undef WGMMA_FLOAT
#undef WGMMA_TURNED

#endif
