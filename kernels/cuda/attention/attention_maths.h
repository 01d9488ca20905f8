/* attention_maths.h: the expressions of the softmax, shared by all attention kernels. Scores are in
 * units of log 2. Plain functions of numbers, for the GPU and the CPU. */
#pragma once

#include "kernels/cuda/attention/attention_index.h"
#include "kernels/maths.h"

#define ATTENTION_LOG2E 1.44269504088896341f
#define ATTENTION_LN2   0.69314718055994531f

/* 2^x, x ≤ 0: x = n + r, |r| ≤ 1/2, a polynomial in r times 2^n. Below −126.5 exactly 0; NaN stays
 * NaN; 2^0 is exactly 1. Relative error below 1.7e-7. Coefficients: minimax on [−1/2, 1/2]
 * (Lawson), with the constant coefficient fixed. About twelve instructions, none on the special
 * function units. */
CUDA_HD float attention_exp2(float x)
{
    union {
        float value;
        uint32_t bits;
    } round, power;
    float t = x < -127.0f ? -127.0f : x;
    round.value = t + 12582912.0f; /* 1.5·2^23: puts the nearest integer into the low bits */
    float r = t - (round.value - 12582912.0f);
    float p = fmaf(r, 1.32647215e-3f, 9.67151299e-3f);
    p = fmaf(p, r, 5.55073358e-2f);
    p = fmaf(p, r, 2.40222424e-1f);
    p = fmaf(p, r, 6.93147004e-1f);
    p = fmaf(p, r, 1.0f);
    power.bits = (round.bits << 23) + 0x3F800000u; /* for −127 exponent and value are 0 */
    return p * power.value;
}

/* Returns a score from q·k. factor: the softmax's scale times log2 e, times the scale of K if it
 * has one. */
CUDA_HD float attention_score(float dot, float factor, float softcap)
{
    float x = dot * factor;
    if (softcap > 0.0f) /* cap · tanh(x / cap) */
        x = softcap * ATTENTION_LOG2E *
            (1.0f - 2.0f / (1.0f + maths_exp(x * (2.0f * ATTENTION_LN2 / softcap))));
    return x;
}

/* Adds ALiBi (slope · log2 e per position) to a score. The key is `distance` after the query;
 * distance ≤ 0 for visible keys. */
CUDA_HD float attention_alibi(float score, float slope, int32_t distance)
{
    return fmaf(slope, (float)distance, score);
}

/* Returns the reference to subtract from scores; 0 if no position is visible, so that 2^(−∞ −
 * reference) is 0. */
CUDA_HD float attention_reference(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* Returns a row's output from its weighted sum and sum of weights. −0 becomes 0, so that empty
 * terms change no bits. */
CUDA_HD float attention_result(float x, float sum)
{
    return x * (1.0f / sum) + 0.0f;
}

/* The effect of a sink on a row's result. Both sums are multiplied by `keep`; then `add` is added
 * to the sum of weights. Without a sink this changes no bits. */
struct attention_sunk {
    float keep, add;
};

/* sinks: logits per head, or NULL. max: the largest score, in units of log 2. */
CUDA_HD struct attention_sunk attention_sunk_of(const float *sinks, uint32_t head, float max)
{
    struct attention_sunk none = {1.0f, 0.0f};
    if (sinks == NULL)
        return none;
    float sink = sinks[head] * ATTENTION_LOG2E, most = sink > max ? sink : max;
    struct attention_sunk sunk = {attention_exp2(max - most), attention_exp2(sink - most)};
    return sunk;
}

/* Returns a row's output from its weighted sum and sum of weights, with a sink. */
CUDA_HD float attention_sunk_result(struct attention_sunk sunk, float x, float sum)
{
    return attention_result(x * sunk.keep, sum * sunk.keep + sunk.add);
}

/* Returns a product that is never part of a fused multiply-add. */
CUDA_HD float attention_scaled(float x, float by)
{
    return x * by;
}

/* --- codes: their scales multiply the scores and the weights --- */

/* Returns the factor of a score for a coded key: a code step is `unit` · `scale`. */
CUDA_HD float attention_key_factor(float factor, float scale, float unit)
{
    return factor * (scale * unit);
}

/* Returns a weight times the scale of its value; 0 for a weight of 0, for any scale. */
CUDA_HD float attention_coded_weight(float weight, float scale)
{
    return weight > 0.0f ? weight * scale : 0.0f;
}

/* Returns the factor for weights that makes the largest 1, so that f16 can hold them. */
CUDA_HD float attention_inverse(float most)
{
    return most > 0.0f ? 1.0f / most : 0.0f;
}

/* Returns the factor from sums in units of `kept` to units of `next`; exactly 1 if the unit did not
 * change. */
CUDA_HD float attention_worth(float kept, float next)
{
    return next > 0.0f ? kept / next : 0.0f;
}

/* --- words of a page as operands --- */

/* Sets operand B to step e of a lane's 16 bytes of K, for 16-bit types. */
CUDA_HD void attention_keys(uint32_t b[2], const uint32_t words[4], uint32_t e)
{
    b[0] = words[2 * e];
    b[1] = words[2 * e + 1];
}

/* Returns the bits of the float in a half of a bf16 pair. */
CUDA_HD uint32_t attention_bf16_low(uint32_t pair)
{
    return pair << 16;
}

CUDA_HD uint32_t attention_bf16_high(uint32_t pair)
{
    return pair & 0xFFFF0000u;
}

/* Exponent bits, all set in a half that is NaN or infinite. */
enum { ATTENTION_BF16_EXPONENT = 0x7F80, ATTENTION_F16_EXPONENT = 0x7C00 };

/* Returns ones in the halves of a word that are NaN or infinite. */
CUDA_HD uint32_t attention_broken(uint32_t word, uint32_t exponent)
{
    return ((word & exponent) == exponent ? 0xFFFFu : 0u) |
           ((word >> 16 & exponent) == exponent ? 0xFFFF0000u : 0u);
}

CUDA_HD uint32_t attention_without(uint32_t word, uint32_t bits)
{
    return word & ~bits;
}

/* Widens two f8 in the high bytes of a word's halves to f16. Exponent and fraction move to f16's
 * places; the result is the value times 2^-8, because the biases are 7 and 15. */
CUDA_HD uint32_t attention_f8_halves(uint32_t high_bytes)
{
    return (high_bytes & 0x80008000u) | (high_bytes >> 1 & 0x3F803F80u);
}
