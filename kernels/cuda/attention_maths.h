/* attention_maths.h: the expressions of the softmax, the same for all attention kernels. Scores are
 * in units of log 2. Plain functions of numbers, for the GPU and the CPU. */
#pragma once

#include "kernels/cuda/attention_index.h"
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
