/* maths.h: the scalar expressions of the numerics contract, written once for every device. They
 * compile as C11 for the CPU and as CUDA C++ for the GPU. Contraction is off (-ffp-contract=off,
 * --fmad=false), so both give the same bits. Vector code computes the same expressions lane by lane
 * (cpu/vec/exp_impl.h). */
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MATHS_FN __host__ __device__ static inline
#else
#define MATHS_FN static inline
#endif

enum activation {
    ACTIVATION_SILU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_GELU_ERF,
    ACTIVATION_RELU,
    ACTIVATION_RELU2,     /* max(x, 0)² */
    ACTIVATION_GATED_OAI, /* gpt-oss: min(g, 7)·σ(1.702·min(g, 7))·(clamp(u, ±7) + 1); needs u */
    N_ACTIVATIONS,
    /* op_act_mul() alone has these: no model's FFN does. */
    ACTIVATION_SIGMOID = N_ACTIVATIONS,
    ACTIVATION_IDENTITY,
};

#define ACTIVATION_OAI_LIMIT 7.0f
#define ACTIVATION_OAI_ALPHA 1.702f

/* e^x in f32: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a polynomial in r, times 2^n. Below −87 the
 * result is exactly 0, above 88 it is e^88; NaN stays NaN. Every operation rounds once (fma instead
 * of mul and add), so scalar and vector code give the same bits. Error: below 2 units in the last
 * place. Coefficients: minimax on [−ln 2 / 2, ln 2 / 2] (Cephes' expf). */
#define EXP_MIN    (-87.0f)
#define EXP_MAX    88.0f
#define EXP_LOG2E  1.44269504088896341f
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_C5     1.9875691500e-4f
#define EXP_C4     1.3981999507e-3f
#define EXP_C3     8.3334519073e-3f
#define EXP_C2     4.1665795894e-2f
#define EXP_C1     1.6666665459e-1f
#define EXP_C0     5.0000001201e-1f

MATHS_FN float maths_exp(float x)
{
    union {
        uint32_t bits;
        float value;
    } power;
    if (x < EXP_MIN)
        return 0.0f;
    if (x != x)
        return x;
    float c = x > EXP_MAX ? EXP_MAX : x, n = rintf(c * EXP_LOG2E);
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, c));
    float p = fmaf(EXP_C5, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, EXP_C1);
    p = fmaf(p, r, EXP_C0);
    p = fmaf(p, r * r, r) + 1.0f;
    power.bits = (uint32_t)((int32_t)n + 127) << 23; /* 2^n, −126 ≤ n ≤ 127 */
    return p * power.value;
}

/* erfc(z) = t·exp(−z² + p(t)), t = 1/(1 + z/2), z ≥ 0 (W. J. Cody's form, relative error 1.2e-7);
 * p's coefficients from t^0 up. */
#define ERFC_N 10
#define ERFC_COEFFICIENTS                                                                          \
    {                                                                                              \
        -1.26551223f, 1.00002368f, 0.37409196f, 0.09678418f, -0.18628806f, 0.27886807f,            \
            -1.13520398f, 1.48851587f, -0.82215223f, 0.17087277f                                   \
    }

MATHS_FN float maths_erfc(float z)
{
    const float coefficients[ERFC_N] = ERFC_COEFFICIENTS;
    float a = fabsf(z), t = 1.0f / fmaf(a, 0.5f, 1.0f), p = coefficients[ERFC_N - 1];
    for (int i = ERFC_N - 2; i >= 0; i--)
        p = fmaf(p, t, coefficients[i]);
    float e = t * maths_exp(p - a * a);
    return z < 0.0f ? 2.0f - e : e;
}

MATHS_FN float maths_sigmoid(float x)
{
    return 1.0f / (1.0f + maths_exp(0.0f - x));
}

MATHS_FN float maths_activate(float x, enum activation kind)
{
    switch (kind) {
    case ACTIVATION_SIGMOID:
        return maths_sigmoid(x);
    case ACTIVATION_IDENTITY:
        return x;
    case ACTIVATION_SILU:
        return x / (1.0f + maths_exp(0.0f - x));
    case ACTIVATION_GELU_TANH: /* x·σ(2·√(2/π)·(x + 0.044715·x³)) */
        return x / (1.0f + maths_exp((x + x * x * x * 0.044715f) * -1.5957691216057308f));
    case ACTIVATION_GELU_ERF:
        return x * 0.5f * maths_erfc(x * -0.70710678118654752f);
    case ACTIVATION_RELU2:
        return x < 0.0f ? 0.0f : x * x;
    case ACTIVATION_GATED_OAI: { /* the factor of u + 1 */
        float g = ACTIVATION_OAI_LIMIT < x ? ACTIVATION_OAI_LIMIT : x;
        return g / (1.0f + maths_exp(g * -ACTIVATION_OAI_ALPHA));
    }
    default:
        return x < 0.0f ? 0.0f : x;
    }
}

/* cap·tanh(x / cap). With w = 2x / cap: 1 − 2/(1 + e^w) loses digits near 0, so for |w| < 1 an odd
 * polynomial of w replaces it (relative error 1.1e-7; coefficients of w, w^3, …, fitted). */
#define SOFTCAP_C0 0.5f
#define SOFTCAP_C1 (-0.041666336f)
#define SOFTCAP_C2 0.0041639935f
#define SOFTCAP_C3 (-4.139537e-4f)
#define SOFTCAP_C4 3.346681e-5f

MATHS_FN float maths_softcap(float x, float cap)
{
    float w = x * (2.0f / cap), z = w * w;
    float p = fmaf(fmaf(z, SOFTCAP_C4, SOFTCAP_C3), z, SOFTCAP_C2);
    p = w * fmaf(fmaf(p, z, SOFTCAP_C1), z, SOFTCAP_C0);
    return cap * (fabsf(w) < 1.0f ? p : 1.0f - 2.0f / (1.0f + maths_exp(w)));
}

/* Returns the product of an activated gate and its up value. */
MATHS_FN float maths_gated(float gate, float up, enum activation kind)
{
    if (kind == ACTIVATION_GATED_OAI) {
        float u = ACTIVATION_OAI_LIMIT < up ? ACTIVATION_OAI_LIMIT : up;
        up = (-ACTIVATION_OAI_LIMIT > u ? -ACTIVATION_OAI_LIMIT : u) + 1.0f;
    }
    return maths_activate(gate, kind) * up;
}

/* ln(1 + e^x). With y = 1 + e^x = m·2^n and m in [√½, √2): n·ln 2 + 2·atanh(s), s = (m − 1)/(m +
 * 1). The series of atanh has terms up to s^9 (|s| < 0.172). Below y = √2, m − 1 is e^x itself. */
MATHS_FN float maths_softplus(float x)
{
    union {
        float value;
        uint32_t bits;
    } m;
    if (!(x < 20.0f)) /* e^-20 is below the rounding of x; NaN */
        return x;
    float u = maths_exp(x), n = 0.0f, f = u;
    m.value = 1.0f + u;
    if (m.value >= 1.41421356f) {
        int32_t exponent = (int32_t)(m.bits >> 23) - 127;
        m.bits -= (uint32_t)exponent << 23;
        if (m.value >= 1.41421356f) {
            m.value = m.value * 0.5f;
            exponent++;
        }
        n = (float)exponent;
        f = m.value - 1.0f;
    }
    float s = f / (2.0f + f), s2 = s * s, p = fmaf(s2, 1.0f / 9.0f, 1.0f / 7.0f);
    p = fmaf(p, s2, 0.2f);
    p = fmaf(p, s2, 1.0f / 3.0f);
    return fmaf(n, 0.693147181f, 2.0f * fmaf(s * s2, p, s));
}

/* Conversions of f16 (IEEE 754 binary16) and bf16. Conversions from f32 round to nearest, ties to
 * even; NaN stays a quiet NaN. */
MATHS_FN float maths_f16_to_f32(uint16_t half)
{
    union {
        uint32_t bits;
        float value;
    } x;
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1F,
             fraction = half & 0x3FF;
    if (exponent == 0) { /* zero or subnormal; as f32 it is normal */
        x.value = (float)fraction * 5.9604644775390625e-8f; /* 2^-24 */
        x.bits |= sign;
    } else {
        x.bits = sign | (exponent == 0x1F ? 0x7F800000u : (exponent + 112) << 23) | fraction << 13;
    }
    return x.value;
}

MATHS_FN float maths_bf16_to_f32(uint16_t half)
{
    union {
        uint32_t bits;
        float value;
    } x;
    x.bits = (uint32_t)half << 16;
    return x.value;
}

MATHS_FN uint16_t maths_f32_to_f16(float value)
{
    union {
        float value;
        uint32_t bits;
    } x;
    x.value = value;
    uint32_t sign = x.bits >> 16 & 0x8000, magnitude = x.bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN: keeps the top bits of the payload */
        return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) /* rounds to 2^16 or beyond */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x33000000) /* below half the smallest subnormal */
        return (uint16_t)sign;
    uint32_t drop, kept;
    if (magnitude >= 0x38800000) {
        drop = 13;
        kept = magnitude - 0x38000000;
    } else { /* subnormal f16: make the implicit bit explicit and shift by the exponent */
        drop = 126 - (magnitude >> 23);
        kept = (magnitude & 0x7FFFFF) | 0x800000;
    }
    uint32_t rest = kept & ((1u << drop) - 1), half = 1u << (drop - 1), out = kept >> drop;
    if (rest > half || (rest == half && (out & 1)))
        out++;
    return (uint16_t)(sign | out);
}

MATHS_FN uint16_t maths_f32_to_bf16(float value)
{
    union {
        float value;
        uint32_t bits;
    } x;
    x.value = value;
    if ((x.bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(x.bits >> 16 | 0x40);
    return (uint16_t)((x.bits + 0x7FFF + (x.bits >> 16 & 1)) >> 16);
}

/* Conversions of f8 (OCP 8-bit floating point, E4M3: no infinities, the largest value is 448).
 * Conversions to f8 round to nearest, ties to even; values beyond ±448 saturate; NaN stays NaN. */
MATHS_FN float maths_f8_to_f32(uint8_t byte)
{
    union {
        uint32_t bits;
        float value;
    } x;
    uint32_t sign = (uint32_t)(byte & 0x80) << 24, exponent = byte >> 3 & 0xF, fraction = byte & 7;
    if ((byte & 0x7F) == 0x7F) {
        x.bits = sign | 0x7FC00000u;
    } else if (exponent == 0) { /* subnormal: multiples of 2^-9 */
        x.value = (float)fraction * 0x1p-9f;
        x.bits |= sign;
    } else {
        x.bits = sign | (exponent + 120) << 23 | fraction << 20;
    }
    return x.value;
}

MATHS_FN uint8_t maths_f32_to_f8(float value)
{
    union {
        float value;
        uint32_t bits;
    } x;
    x.value = value;
    uint32_t sign = x.bits >> 24 & 0x80, magnitude = x.bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return (uint8_t)(sign | 0x7F);
    if (magnitude >= 0x43E00000) /* 448 and beyond */
        return (uint8_t)(sign | 0x7E);
    if (magnitude < 0x3A800000) /* below half the smallest subnormal, 2^-10 */
        return (uint8_t)sign;
    uint32_t drop, kept;
    if (magnitude >= 0x3C800000) { /* 2^-6: normal */
        drop = 20;
        kept = magnitude - 0x3C000000;
    } else {
        drop = 141 - (magnitude >> 23);
        kept = (magnitude & 0x7FFFFF) | 0x800000;
    }
    uint32_t rest = kept & ((1u << drop) - 1), half = 1u << (drop - 1), out = kept >> drop;
    if (rest > half || (rest == half && (out & 1)))
        out++;
    return (uint8_t)(sign | out); /* 448 is even, so no smaller value rounds beyond it */
}

/* Sine and cosine of a rotary angle, times `factor`. Exact to f32 rounding: argument reduction by
 * π/2 in f64, Taylor to r^13. Only mul, add and sub, so that compilers can vectorise the
 * function. */
MATHS_FN void maths_sincos(float angle, float factor, float *out_sin, float *out_cos)
{
    const double two_over_pi = 0.63661977236758134308, magic = 6755399441055744.0; /* 1.5·2^52 */
    const double pio2_hi = 1.57079632673412561417e+00, pio2_lo = 6.07710050650619224932e-11;
    double x = (double)angle;
    double turns = x * two_over_pi + magic - magic; /* nearest integer for |x| < 2^51 */
    double r = x - turns * pio2_hi - turns * pio2_lo, r2 = r * r;
    double s =
        r + r * r2 *
                (-1.0 / 6 +
                 r2 * (1.0 / 120 + r2 * (-1.0 / 5040 +
                                         r2 * (1.0 / 362880 + r2 * (-1.0 / 39916800 +
                                                                    r2 * (1.0 / 6227020800.0))))));
    double c =
        1.0 +
        r2 * (-0.5 + r2 * (1.0 / 24 +
                           r2 * (-1.0 / 720 + r2 * (1.0 / 40320 + r2 * (-1.0 / 3628800 +
                                                                        r2 * (1.0 / 479001600))))));
    double quarter = turns - 4.0 * ((turns * 0.25 + magic) - magic); /* −2..2 */
    double is_odd = quarter * quarter == 1.0 ? 1.0 : 0.0;
    double sin_value = is_odd != 0.0 ? c : s, cos_value = is_odd != 0.0 ? s : c;
    /* quadrants: 0 (s, c), 1 (c, −s), ±2 (−s, −c), −1 (−c, s) */
    double sin_sign = quarter == -1.0 || quarter * quarter == 4.0 ? -1.0 : 1.0;
    double cos_sign = quarter == 1.0 || quarter * quarter == 4.0 ? -1.0 : 1.0;
    *out_sin = (float)(sin_sign * sin_value) * factor;
    *out_cos = (float)(cos_sign * cos_value) * factor;
}
