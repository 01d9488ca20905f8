/* probe_wgmma.h: wgmma of every width that the probes ask about, as a function per instruction.
 * Layout and order: kernels/cuda/dense/ptx_wgmma.h. Source: PTX ISA 8.x, "Asynchronous Warpgroup
 * Level Matrix Instructions". The emulator knows the widest of two types. */
#pragma once

#include "kernels/cuda/dense/ptx_wgmma.h"
#include "tests/gpu/probe/probe.h"

/* Sums of a thread. */
#define PROBE_SUMS(n) ((n) / 2)

template <enum probe_type T, bool RS, uint32_t N> struct probe_wgmma {
    static constexpr bool known = false;
};

#ifdef __CUDACC__

#define CUDA_PROBE __device__ static __forceinline__

#if WGMMA_BUILT
#define PROBE_ASM(...) asm volatile(__VA_ARGS__)
#else
#define PROBE_ASM(...)
#endif

#define PROBE_D4(d, i)   "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define PROBE_D8(d, i)   PROBE_D4(d, i), PROBE_D4(d, (i) + 4)
#define PROBE_D16(d, i)  PROBE_D8(d, i), PROBE_D8(d, (i) + 8)
#define PROBE_D32(d, i)  PROBE_D16(d, i), PROBE_D16(d, (i) + 16)
#define PROBE_D64(d, i)  PROBE_D32(d, i), PROBE_D32(d, (i) + 32)
#define PROBE_D128(d, i) PROBE_D64(d, i), PROBE_D64(d, (i) + 64)

/* Operands %0 to %n-1. */
#define PROBE_N4  "%0, %1, %2, %3"
#define PROBE_N8  PROBE_N4 ", %4, %5, %6, %7"
#define PROBE_N16 PROBE_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PROBE_N32                                                                                  \
    PROBE_N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PROBE_N64                                                                                  \
    PROBE_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
              "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PROBE_N128 WGMMA_NAMES

/* d += A · Bᵀ. S: sums; A0 … A4: the numbers of the operands behind the sums. */
#define PROBE_WGMMA(T, types, tail, N, S, A0, A1, A2, A3, A4)                                      \
    template <> struct probe_wgmma<T, false, N> {                                                  \
        static constexpr bool known = true;                                                        \
        CUDA_PROBE void multiply(float *d, const uint32_t *, uint64_t a, uint64_t b)               \
        {                                                                                          \
            PROBE_ASM("wgmma.mma_async.sync.aligned.m64n" #N types " {" PROBE_N##S                 \
                      "}, %" #A0 ", %" #A1 ", 1, 1, 1" tail ";"                                    \
                      : PROBE_D##S(d, 0)                                                           \
                      : "l"(a), "l"(b)                                                             \
                      : "memory");                                                                 \
        }                                                                                          \
        CUDA_PROBE void wait(float *d)                                                             \
        {                                                                                          \
            PROBE_ASM("wgmma.wait_group.sync.aligned 0;" : PROBE_D##S(d, 0)::"memory");            \
        }                                                                                          \
    };

#define PROBE_WGMMA_RS(T, types, N, S, A0, A1, A2, A3, A4)                                         \
    template <> struct probe_wgmma<T, true, N> {                                                   \
        static constexpr bool known = true;                                                        \
        CUDA_PROBE void multiply(float *d, const uint32_t *a, uint64_t, uint64_t b)                \
        {                                                                                          \
            PROBE_ASM("wgmma.mma_async.sync.aligned.m64n" #N types " {" PROBE_N##S                 \
                      "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #A4 ", 1, 1, 1, 0;"         \
                      : PROBE_D##S(d, 0)                                                           \
                      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                         \
                      : "memory");                                                                 \
        }                                                                                          \
        CUDA_PROBE void wait(float *d)                                                             \
        {                                                                                          \
            PROBE_ASM("wgmma.wait_group.sync.aligned 0;" : PROBE_D##S(d, 0)::"memory");            \
        }                                                                                          \
    };

#define PROBE_WIDTHS(T, types, tail)                                                               \
    PROBE_WGMMA(T, types, tail, 8, 4, 4, 5, 6, 7, 8)                                               \
    PROBE_WGMMA(T, types, tail, 16, 8, 8, 9, 10, 11, 12)                                           \
    PROBE_WGMMA(T, types, tail, 32, 16, 16, 17, 18, 19, 20)                                        \
    PROBE_WGMMA(T, types, tail, 64, 32, 32, 33, 34, 35, 36)                                        \
    PROBE_WGMMA(T, types, tail, 128, 64, 64, 65, 66, 67, 68)                                       \
    PROBE_WGMMA(T, types, tail, 256, 128, 128, 129, 130, 131, 132)
#define PROBE_WIDTHS_RS(T, types)                                                                  \
    PROBE_WGMMA_RS(T, types, 8, 4, 4, 5, 6, 7, 8)                                                  \
    PROBE_WGMMA_RS(T, types, 64, 32, 32, 33, 34, 35, 36)                                           \
    PROBE_WGMMA_RS(T, types, 256, 128, 128, 129, 130, 131, 132)

PROBE_WIDTHS(PROBE_BF16, "k16.f32.bf16.bf16", ", 0, 0")
PROBE_WIDTHS(PROBE_F16, "k16.f32.f16.f16", ", 0, 0")
PROBE_WIDTHS(PROBE_E4M3, "k32.f32.e4m3.e4m3", "")
PROBE_WIDTHS_RS(PROBE_BF16, "k16.f32.bf16.bf16")
PROBE_WIDTHS_RS(PROBE_F16, "k16.f32.f16.f16")

#else

#define CUDA_PROBE static inline

template <> struct probe_wgmma<PROBE_BF16, false, 256> {
    static constexpr bool known = true;
    CUDA_PROBE void multiply(float *d, const uint32_t *, uint64_t a, uint64_t b)
    {
        wgmma_m64n256k16_bf16(d, a, b);
    }
    CUDA_PROBE void wait(float *d)
    {
        wgmma_wait(d);
    }
};
template <> struct probe_wgmma<PROBE_F16, false, 256> {
    static constexpr bool known = true;
    CUDA_PROBE void multiply(float *d, const uint32_t *, uint64_t a, uint64_t b)
    {
        wgmma_m64n256k16_f16(d, a, b);
    }
    CUDA_PROBE void wait(float *d)
    {
        wgmma_wait(d);
    }
};

#endif
