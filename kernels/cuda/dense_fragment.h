/* dense_fragment.h: multiplications of 16 × 8 tiles by form, for the kernels of dense linears. Only
 * read by .cu files. */
#pragma once

#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/ptx.h"

/* Four int8 as two pairs of bf16, exactly: bytes 0 and 2, bytes 1 and 3. 128 + (q & 127) and
 * −(128 + (q & 128)) are bf16 of one unit's precision whose sum is q. */
CUDA_DEVICE uint32_t dense_widen_pair(uint32_t two)
{
    uint32_t low = (two & 0x007F007Fu) | 0x43004300u, high = (two & 0x00800080u) | 0xC300C300u;
    return add_bf16x2(low, high);
}

CUDA_DEVICE void dense_widen(uint32_t out[2], uint32_t four)
{
    out[0] = dense_widen_pair(four);
    out[1] = dense_widen_pair(four >> 8);
}

/* d += A·B of fragments of 32 bytes along k (int8: already widened). */
template <enum dense_form FORM>
CUDA_DEVICE void dense_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (FORM == DENSE_F16) {
        mma_m16n8k16_f16(d, a, b);
    } else if constexpr (FORM == DENSE_F8) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890 /* others are refused such weights */
        mma_m16n8k32_e4m3(d, a, b);
#endif
    } else {
        mma_m16n8k16_bf16(d, a, b);
    }
}

/* What becomes of a sum over k. */
CUDA_DEVICE float dense_scaled(float sum, const float *row_scale, const float *col_scale,
                               uint32_t row, uint32_t col)
{
    float scale = (row_scale ? row_scale[row] : 1.0f) * (col_scale ? col_scale[col] : 1.0f);
    return sum * scale;
}

/* The contract's tree over up to 8 sums, `step` floats apart: cuda_tree_sum() in registers. */
CUDA_DEVICE float dense_tree(const float *at, size_t step, uint32_t present)
{
    float parts[CUDA_SEGMENTS];
#pragma unroll
    for (uint32_t s = 0; s < CUDA_SEGMENTS; s++)
        parts[s] = present >> s & 1 ? at[s * step] : 0.0f;
#pragma unroll
    for (uint32_t apart = 1; apart < CUDA_SEGMENTS; apart *= 2)
#pragma unroll
        for (uint32_t i = 0; i < CUDA_SEGMENTS; i += 2 * apart) {
            uint32_t left = present >> i & 1, right = present >> (i + apart) & 1;
            float both = parts[i] + parts[i + apart];
            parts[i] = !right ? parts[i] : left ? both : parts[i + apart];
            present |= right << i;
        }
    return parts[0];
}
