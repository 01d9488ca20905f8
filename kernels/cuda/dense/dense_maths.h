/* dense_maths.h: the arithmetic of dense linears on CUDA beside the multiplications: widening
 * codes, scaling sums, preparing activations. Plain functions of numbers, for the GPU and for the
 * CPU (tests/unit/kernels/cuda/test_cuda_dense_place.c). */
#pragma once

#include <math.h>

#include "kernels/cuda/dense_index.h"
#include "kernels/maths.h"

/* Split two int8 (bytes 0 and 2 of a word) into pairs of bf16 with exactly these sums. 128 + (q &
 * 127) and −(128 + (q & 128)) are bf16 with a precision of one unit. */
CUDA_HD uint32_t dense_widen_low(uint32_t two)
{
    return (two & 0x007F007Fu) | 0x43004300u;
}

CUDA_HD uint32_t dense_widen_high(uint32_t two)
{
    return (two & 0x00800080u) | 0xC300C300u;
}

/* Moves bytes 1 and 3 to the places of 0 and 2. */
CUDA_HD uint32_t dense_odd_bytes(uint32_t four)
{
    return four >> 8;
}

/* Scales a sum by scales that have been read. */
CUDA_HD float dense_scaled_by(float sum, float row_scale, float col_scale)
{
    return sum * (row_scale * col_scale);
}

/* Scales a sum over k. */
CUDA_HD float dense_scaled(float sum, const float *row_scale, const float *col_scale, uint32_t row,
                           uint32_t col)
{
    return dense_scaled_by(sum, row_scale ? row_scale[row] : 1.0f,
                           col_scale ? col_scale[col] : 1.0f);
}

/* The contract's tree over up to 8 sums, `step` floats apart; cuda_tree_sum() in registers. */
CUDA_HD float dense_tree(const float *at, size_t step, uint32_t present)
{
    float parts[CUDA_SEGMENTS];
    CUDA_UNROLL
    for (uint32_t s = 0; s < CUDA_SEGMENTS; s++)
        parts[s] = present >> s & 1 ? at[s * step] : 0.0f;
    CUDA_UNROLL
    for (uint32_t apart = 1; apart < CUDA_SEGMENTS; apart *= 2) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_SEGMENTS; i += 2 * apart) {
            uint32_t left = present >> i & 1, right = present >> (i + apart) & 1;
            float both = parts[i] + parts[i + apart];
            parts[i] = !right ? parts[i] : left ? both : parts[i + apart];
            present |= right << i;
        }
    }
    return parts[0];
}

/* f32: continues a lane's chain of fused multiply-adds over its four columns. */
CUDA_HD float dense_chain(float sum, const float w[4], const float x[4])
{
    sum = fmaf(w[0], x[0], sum);
    sum = fmaf(w[1], x[1], sum);
    sum = fmaf(w[2], x[2], sum);
    return fmaf(w[3], x[3], sum);
}

/* Returns the gate's result times up's. */
CUDA_HD float dense_gated(float gate, float up, uint32_t kind)
{
    return maths_gated(gate, up, (enum activation)kind);
}

/* --- activations --- */

#define ACT_TINY 1e-30f /* lower limit of a row's largest value */

CUDA_HD float act_bounded(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

CUDA_HD uint32_t act_half(float x, enum dense_form form)
{
    return form == DENSE_F16 ? maths_f32_to_f16(act_bounded(x, 65504.0f)) : maths_f32_to_bf16(x);
}

/* f8: returns the factor for a row whose largest magnitude is `top`. */
CUDA_HD float act_f8_inverse(float top)
{
    return 448.0f / top;
}

/* f8: returns the unit of that row's codes. */
CUDA_HD float act_f8_unit(float top)
{
    return top / 448.0f;
}

CUDA_HD uint32_t act_f8_code(float x, float inverse)
{
    return maths_f32_to_f8(x * inverse);
}

/* --- f16 with a power of two per row: the row's largest magnitude, `top`, comes to [2^14, 2^15)
 * --- */

CUDA_HD float act_of_exponent(uint32_t biased)
{
    union {
        uint32_t bits;
        float value;
    } x;
    x.bits = biased << 23;
    return x.value;
}

/* Returns the biased exponent of a positive number. */
CUDA_HD uint32_t act_exponent_of(float top)
{
    union {
        float value;
        uint32_t bits;
    } x;
    x.value = top;
    return x.bits >> 23;
}

/* Returns x scaled, before it is rounded. top ≥ ACT_TINY. */
CUDA_HD float act_f16_scaled(float x, float top)
{
    return x * act_of_exponent(254 + 14 - act_exponent_of(top));
}

/* Returns the unit of that row's values; NaN if the row is infinite. */
CUDA_HD float act_f16_unit(float top)
{
    uint32_t exponent = act_exponent_of(top);
    return exponent == 255 ? NAN : act_of_exponent(exponent - 14);
}
