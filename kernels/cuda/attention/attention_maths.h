/* attention_maths.h: the expressions of the softmax, the same for all attention kernels. Scores are
 * in units of log 2. Plain functions of numbers, for the GPU and the CPU. */
#pragma once

#include "kernels/cuda/attention/attention_index.h"
#include "kernels/maths.h"

#define ATTENTION_LOG2E 1.44269504088896341f
#define ATTENTION_LN2   0.69314718055994531f

/* 2^x, x ≤ 0: x = n + r, |r| ≤ 1/2, a polynomial in r times 2^n. Below −126.5 exactly 0; NaN stays
 * NaN; 2^0 is exactly 1. Relative error below 1.7e-7. Coefficients: minimax on [−1/2, 1/2]
 * (Lawson), the constant one fixed. Some twelve instructions, none of the special units. */
CUDA_HD float attention_exp2(float x)
{
    union {
        float value;
        uint32_t bits;
    } round, power;
    float t = x < -127.0f ? -127.0f : x;
    round.value = t + 12582912.0f; /* 1.5·2^23: the nearest integer in the low bits */
    float r = t - (round.value - 12582912.0f);
    float p = fmaf(r, 1.32647215e-3f, 9.67151299e-3f);
    p = fmaf(p, r, 5.55073358e-2f);
    p = fmaf(p, r, 2.40222424e-1f);
    p = fmaf(p, r, 6.93147004e-1f);
    p = fmaf(p, r, 1.0f);
    power.bits = (round.bits << 23) + 0x3F800000u; /* −127: exponent and value 0 */
    return p * power.value;
}

/* A score from q·k; factor: the softmax's scale times log2 e, and the scale of K where it has one.
 */
CUDA_HD float attention_score(float dot, float factor, float softcap)
{
    float x = dot * factor;
    if (softcap > 0.0f) /* cap · tanh(x / cap) */
        x = softcap * ATTENTION_LOG2E *
            (1.0f - 2.0f / (1.0f + maths_exp(x * (2.0f * ATTENTION_LN2 / softcap))));
    return x;
}

/* What ALiBi makes of a score (slope · log2 e per position) whose key is `distance` after the
 * query: 0 or less where it is seen. */
CUDA_HD float attention_alibi(float score, float slope, int32_t distance)
{
    return fmaf(slope, (float)distance, score);
}

/* What scores are told apart by where none is visible: 2^(−∞ − reference) is 0. */
CUDA_HD float attention_reference(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* A row's output from its weighted sum and sum of weights; −0 becomes 0, so that empty terms leave
 * no trace. */
CUDA_HD float attention_result(float x, float sum)
{
    return x * (1.0f / sum) + 0.0f;
}

/* A product of its own, never part of a fused one. */
CUDA_HD float attention_scaled(float x, float by)
{
    return x * by;
}

/* --- codes: their scales go to the scores and to the weights --- */

/* The factor of a score whose key's code is `unit` · `scale` each. */
CUDA_HD float attention_key_factor(float factor, float scale, float unit)
{
    return factor * (scale * unit);
}

/* A weight times the scale of its value; where it is none, whatever the scale is. */
CUDA_HD float attention_coded_weight(float weight, float scale)
{
    return weight > 0.0f ? weight * scale : 0.0f;
}

/* What weights are multiplied by, so that the largest is 1 and f16 holds them. */
CUDA_HD float attention_inverse(float most)
{
    return most > 0.0f ? 1.0f / most : 0.0f;
}

/* What sums in units of `kept` are in units of `next`: exactly 1 where nothing was added. */
CUDA_HD float attention_worth(float kept, float next)
{
    return next > 0.0f ? kept / next : 0.0f;
}

/* --- words of a page as operands --- */

/* Step e of a lane's 16 bytes of K, of 16-bit types, as operand B. */
CUDA_HD void attention_keys(uint32_t b[2], const uint32_t words[4], uint32_t e)
{
    b[0] = words[2 * e];
    b[1] = words[2 * e + 1];
}

/* Bits of the floats that a pair of bf16 is. */
CUDA_HD uint32_t attention_bf16_low(uint32_t pair)
{
    return pair << 16;
}

CUDA_HD uint32_t attention_bf16_high(uint32_t pair)
{
    return pair & 0xFFFF0000u;
}

/* Exponents of which all bits are ones where a half is NaN or infinite. */
enum { ATTENTION_BF16_EXPONENT = 0x7F80, ATTENTION_F16_EXPONENT = 0x7C00 };

/* The halves of a word that are, as ones. */
CUDA_HD uint32_t attention_broken(uint32_t word, uint32_t exponent)
{
    return ((word & exponent) == exponent ? 0xFFFFu : 0u) |
           ((word >> 16 & exponent) == exponent ? 0xFFFF0000u : 0u);
}

CUDA_HD uint32_t attention_without(uint32_t word, uint32_t bits)
{
    return word & ~bits;
}

/* Two f8 in the high bytes of a word's halves: exponent and fraction in f16's places are the value
 * times 2^-8, the exponents' biases being 7 and 15. */
CUDA_HD uint32_t attention_f8_halves(uint32_t high_bytes)
{
    return (high_bytes & 0x80008000u) | (high_bytes >> 1 & 0x3F803F80u);
}
