/* sample_math.h: exp and log in plain f32 arithmetic. No libm, no fused multiply-add, no tables:
 * the same bits on every machine, in scalar and vector code alike. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* the CUDA sampler compiles the same lines to the same bits */
#define SAMPLE_MATH_FN __host__ __device__ static inline
#else
#define SAMPLE_MATH_FN static inline
#endif

/* exp(x) for x ≤ 0 (0 below −87), error under 2 ulp. Cody–Waite reduction x = n·ln 2 + r,
 * |r| ≤ ln 2 / 2, then e^r = 1 + r + r²·p(r), p of degree 5 (minimax, Cephes expf). */
SAMPLE_MATH_FN float sample_exp(float x)
{
    const float round_magic = 12582912.0f; /* 1.5 · 2^23: adding it rounds to an integer */
    float clamped = x < -87.0f ? -87.0f : x;
    float n = (clamped * 1.44269504f + round_magic) - round_magic;
    float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = (p * (r * r) + r) + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    y *= scale;
    return x < -87.0f ? 0.0f : y;
}

/* log(x) for finite normal x > 0, error under 2 ulp. x = m·2^e with m in [√½, √2), then the minimax
 * polynomial of Cephes logf in m − 1. */
SAMPLE_MATH_FN float sample_log(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int32_t e = (int32_t)(bits >> 23) - 126;
    bits = (bits & 0x007FFFFFu) | 0x3F000000u; /* m in [½, 1) */
    float m;
    memcpy(&m, &bits, sizeof(m));
    if (m < 0.707106781f) {
        e--;
        m = m + m;
    }
    float f = m - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f + -1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f + -1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f + -1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f + -2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float n = (float)e;
    float y = p * (f * z);
    y = y + n * -2.12194440e-4f;
    y = y - 0.5f * z;
    return (f + y) + n * 0.693359375f;
}
