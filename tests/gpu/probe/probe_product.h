/* probe_product.h: the probes' products (probe.h): one tile, one chain along k, plain code. Loads
 * are not overlapped, because only bits matter. */
#pragma once

#include "kernels/cuda/dense/dense_prompt_index.h"
#include "kernels/cuda/ptx.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernel.h"
#include "tests/gpu/probe/probe_wgmma.h"

enum {
    PROBE_LINE = 128, /* bytes of k in a stage */
    PROBE_WIDEST = 256,
    PROBE_STAGE_BYTES = (PROBE_ROWS + PROBE_WIDEST) * PROBE_LINE,
    PROBE_SHARED_BYTES = PROBE_STAGE_BYTES + WGMMA_EIGHT,
};

struct probe_args {
    const unsigned char *a, *b; /* rows of row_bytes */
    float *y;
    uint32_t n, row_bytes;
    uint32_t promote; /* multiplications after which other registers take over; 0: never */
};

/* Copies bytes [at, at + PROBE_LINE) of n_rows rows, in the order that wgmma_matrix() describes. */
CUDA_DEVICE void probe_fill(unsigned char *to, const unsigned char *from, uint32_t n_rows,
                            uint32_t row_bytes, uint32_t at)
{
    for (uint32_t i = threadIdx.x; i < n_rows * 8; i += blockDim.x) {
        uint32_t row = i / 8, piece = i % 8;
        const unsigned char *piece_from = from + (size_t)row * row_bytes + at + piece * 16;
        *(uint4 *)(to + prompt_piece_at(row, piece, PROBE_LINE)) = *(const uint4 *)piece_from;
    }
}

/* Loads a thread's part of A for one multiplication of 16-bit elements, from byte `at` of its rows.
 */
CUDA_DEVICE void probe_fragment(uint32_t out[4], const unsigned char *a, uint32_t row_bytes,
                                uint32_t at)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned char *row = a + (size_t)(threadIdx.x / 32 * 16 + g) * row_bytes + at + t * 4;
    for (uint32_t i = 0; i < 4; i++)
        out[i] = *(const uint32_t *)(row + (size_t)(i % 2) * 8 * row_bytes + i / 2 * 16);
}

/* PROMOTE: every p.promote multiplications, the sums move to other registers. */
template <enum probe_type T, bool RS, uint32_t N, bool PROMOTE>
static __global__ void __launch_bounds__(128) probe_wgmma_product(struct probe_args p)
{
    using wgmma = probe_wgmma<T, RS, N>;
    CUDA_SHARED(memory);
    unsigned char *shared = memory + wgmma_skip(wgmma_address(memory));
    unsigned char *b_at = shared + PROBE_ROWS * PROBE_LINE;
    uint32_t a_address = wgmma_address(shared), b_address = wgmma_address(b_at);
    float d[PROBE_SUMS(N)] = {}, sums[PROMOTE ? PROBE_SUMS(N) : 1] = {};
    uint32_t fragment[PROBE_LINE / WGMMA_STEP][4] = {}, n_added = 0;
    for (uint32_t at = 0; at < p.row_bytes; at += PROBE_LINE) {
        probe_fill(shared, p.a, PROBE_ROWS, p.row_bytes, at);
        probe_fill(b_at, p.b, N, p.row_bytes, at);
        for (uint32_t c = 0; RS && c < PROBE_LINE / WGMMA_STEP; c++)
            probe_fragment(fragment[c], p.a, p.row_bytes, at + c * WGMMA_STEP);
        wgmma_fence_shared();
        __syncthreads();
        wgmma_fence();
#pragma unroll
        for (uint32_t c = 0; c < PROBE_LINE / WGMMA_STEP; c++) {
            wgmma::multiply(d, fragment[c], wgmma_matrix(wgmma_step_at(a_address, c)),
                            wgmma_matrix(wgmma_step_at(b_address, c)));
            if (!PROMOTE || ++n_added < p.promote)
                continue;
            wgmma_commit();
            wgmma::wait(d);
#pragma unroll
            for (uint32_t i = 0; i < PROBE_SUMS(N); i++) {
                sums[PROMOTE ? i : 0] += d[i];
                d[i] = 0.0f;
            }
            n_added = 0;
            wgmma_fence();
        }
        wgmma_commit();
        wgmma::wait(d);
        __syncthreads();
    }
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    float *y = p.y + ((size_t)blockIdx.x * PROBE_ROWS + row) * N + lane % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < PROBE_SUMS(N); i++)
        y[i / 2 % 2 * 8 * N + i / 4 * 8 + i % 2] = PROMOTE ? sums[PROMOTE ? i : 0] + d[i] : d[i];
}

/* Four warps of 16 rows each. */
template <enum probe_type T>
static __global__ void __launch_bounds__(128) probe_mma_product(struct probe_args p)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint32_t j = 0; j < p.n; j += 8) {
        const unsigned char *column = p.b + (size_t)(j + g) * p.row_bytes + t * 4;
        float d[4] = {};
        for (uint32_t at = 0; at < p.row_bytes; at += WGMMA_STEP) {
            uint32_t a[4], b[2];
            probe_fragment(a, p.a, p.row_bytes, at);
            b[0] = *(const uint32_t *)(column + at);
            b[1] = *(const uint32_t *)(column + at + 16);
            if constexpr (T == PROBE_BF16)
                mma_m16n8k16_bf16(d, a, b);
            else if constexpr (T == PROBE_F16)
                mma_m16n8k16_f16(d, a, b);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
            else
                mma_m16n8k32_e4m3(d, a, b);
#endif
        }
        uint32_t row = threadIdx.x / 32 * 16 + g;
        float *y = p.y + ((size_t)blockIdx.x * PROBE_ROWS + row) * p.n + j + t * 2;
        for (uint32_t i = 0; i < 4; i++)
            y[i / 2 * 8 * p.n + i % 2] = d[i];
    }
}

template <enum probe_type T, bool RS, uint32_t N, bool PROMOTE>
static int probe_launch_wgmma(uint32_t n_blocks, const struct probe_args &args)
{
    if constexpr (probe_wgmma<T, RS, N>::known) {
        int code = 0;
        PROBE_TRY(code,
                  CUDA_ALLOW_SHARED((probe_wgmma_product<T, RS, N, PROMOTE>), PROBE_SHARED_BYTES));
        PROBE_TRY(code, PROBE_LAUNCH((probe_wgmma_product<T, RS, N, PROMOTE>), n_blocks, 128,
                                     PROBE_SHARED_BYTES, args));
        return code;
    }
    return PROBE_ABSENT;
}

template <enum probe_type T, bool RS>
static int probe_launch_width(uint32_t n_blocks, const struct probe_args &args)
{
    if (args.promote != 0) {
        if constexpr (T == PROBE_E4M3 && !RS)
            return args.n == 64 ? probe_launch_wgmma<T, RS, 64, true>(n_blocks, args)
                                : PROBE_ABSENT;
        return PROBE_ABSENT;
    }
    switch (args.n) {
    case 8:
        return probe_launch_wgmma<T, RS, 8, false>(n_blocks, args);
    case 16:
        return probe_launch_wgmma<T, RS, 16, false>(n_blocks, args);
    case 32:
        return probe_launch_wgmma<T, RS, 32, false>(n_blocks, args);
    case 64:
        return probe_launch_wgmma<T, RS, 64, false>(n_blocks, args);
    case 128:
        return probe_launch_wgmma<T, RS, 128, false>(n_blocks, args);
    case 256:
        return probe_launch_wgmma<T, RS, 256, false>(n_blocks, args);
    default:
        return PROBE_ABSENT;
    }
}

template <enum probe_type T>
static int probe_launch_form(enum probe_form form, uint32_t n_blocks, const struct probe_args &args)
{
    if (form == PROBE_WGMMA_SS)
        return probe_launch_width<T, false>(n_blocks, args);
    if (form == PROBE_WGMMA_RS)
        return probe_launch_width<T, true>(n_blocks, args);
    int code = 0;
    PROBE_TRY(code, PROBE_LAUNCH(probe_mma_product<T>, n_blocks, 128, 0, args));
    return code;
}
