/* ptx.h: instructions that have no name in CUDA C, a function per instruction. Source: PTX ISA 8.x,
 * sections "Warp Level Matrix Multiply-Accumulate", "ldmatrix", "cp.async", "cvt", "sub". Fragments
 * of a lane (g = lane / 4, t = lane % 4):
 *
 *   m16n8k16, 16-bit: a[0] (row g, columns 2t, 2t+1)  a[1] row g+8  a[2] columns + 8  a[3] both
 *                     b[0] (rows 2t, 2t+1 of column g)  b[1] rows + 8
 *   m16n8k16,  8-bit: a[0] (row g, columns 4t..4t+3)  a[1] row g+8
 *                     b (rows 4t..4t+3 of column g)
 *   m16n8k32,  8-bit: a[0] (row g, columns 4t..4t+3)  a[1] row g+8  a[2] columns + 16  a[3] both
 *                     b[0] (rows 4t..4t+3 of column g)  b[1] rows + 16
 *   all:              d[0], d[1] (row g, columns 2t, 2t+1)  d[2], d[3] row g+8
 *
 * The elements of b lie along k of one output column. tests/simt/simt_ptx.h has the same functions
 * for the CPU; tests/gpu compares the two. */
#pragma once

#include "kernels/cuda/thread.h"

#ifndef __CUDACC__

#include <simt_ptx.h>

#else

/* Adds two pairs of bf16, rounded to nearest. */
CUDA_DEVICE uint32_t add_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d; /* sm_80 has no bf16 addition: a · 1 + b */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3F803F80u), "r"(b));
    return d;
}

/* d += A·B. Integer sums are exact (no saturation). Float sums are in the tensor core's order,
 * which is the same in every call. */
#define PTX_MMA_FLOAT(name, shape_types)                                                           \
    CUDA_DEVICE void name(float d[4], const uint32_t a[4], const uint32_t b[2])                    \
    {                                                                                              \
        asm("mma.sync.aligned." shape_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "             \
            "{%0,%1,%2,%3};"                                                                       \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
    }
PTX_MMA_FLOAT(mma_m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
PTX_MMA_FLOAT(mma_m16n8k16_f16, "m16n8k16.row.col.f32.f16.f16.f32")
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
PTX_MMA_FLOAT(mma_m16n8k32_e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif
#undef PTX_MMA_FLOAT

#define PTX_MMA_INT(name, shape_types)                                                             \
    CUDA_DEVICE void name(int32_t d[4], const uint32_t a[4], const uint32_t b[2])                  \
    {                                                                                              \
        asm("mma.sync.aligned." shape_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "             \
            "{%0,%1,%2,%3};"                                                                       \
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
    }
PTX_MMA_INT(mma_m16n8k32_s8, "m16n8k32.row.col.s32.s8.s8.s32")
PTX_MMA_INT(mma_m16n8k32_u8s8, "m16n8k32.row.col.s32.u8.s8.s32")
#undef PTX_MMA_INT

CUDA_DEVICE void mma_m16n8k16_u8s8(int32_t d[4], const uint32_t a[2], uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* Loads four 8 × 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row
 * i % 8 of matrix i / 8 (16 bytes, aligned). r[m] is columns 2t, 2t+1 of row g of matrix m; with
 * _trans rows 2t, 2t+1 of column g. */
CUDA_DEVICE void ldmatrix_x4(uint32_t r[4], const void *shared_row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared_row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

CUDA_DEVICE void ldmatrix_x4_trans(uint32_t r[4], const void *shared_row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared_row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Copies 16 bytes (both sides aligned) without registers. If not `valid`, writes 16 zeros and does
 * not read `global`. Done after cp_async_wait() of its group; other threads also need a barrier. */
CUDA_DEVICE void cp_async_16(void *shared, const void *global, bool valid)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared), n_bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global),
                 "r"(n_bytes)
                 : "memory");
}

/* cp_async_16() for data that are read once, front to back: the L2 cache prefetches 128 bytes at a
 * time. */
CUDA_DEVICE void cp_async_once_16(void *shared, const void *global, bool valid)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared), n_bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(global),
                 "r"(n_bytes)
                 : "memory");
}

CUDA_DEVICE void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's committed groups are in flight. */
template <int N> CUDA_DEVICE void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Converts two floats to 16-bit floats, to nearest even, x in the low half. f16 beyond its range
 * becomes infinite. */
CUDA_DEVICE uint32_t pack_bf16x2(float x, float y)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

CUDA_DEVICE uint32_t pack_f16x2(float x, float y)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

/* Converts a pair of f16 to floats. */
CUDA_DEVICE void unpack_f16x2(float out[2], uint32_t pair)
{
    asm("{.reg .f16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;}"
        : "=f"(out[0]), "=f"(out[1])
        : "r"(pair));
}

/* Converts four E4M3 to f16, exactly, in order. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
CUDA_DEVICE void unpack_e4m3x4(uint32_t pairs[2], uint32_t codes)
{
    asm("{.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(codes));
}
#endif

/* Returns x − y of pairs of f16, each rounded to nearest even. */
CUDA_DEVICE uint32_t sub_f16x2(uint32_t x, uint32_t y)
{
    uint32_t pair;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
    return pair;
}

/* Returns 2^x within 2^-22 of itself, by the special function unit. Exactly 1 for 0, 0 for −∞; a
 * subnormal result is 0. */
CUDA_DEVICE float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Loads 16 bytes that are read once, without allocation in the first cache. */
CUDA_DEVICE uint4 load_once_16(const void *global)
{
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(global));
    return x;
}

#endif
