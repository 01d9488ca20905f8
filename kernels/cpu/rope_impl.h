/* rope_impl.h: rotary embedding of one row (arXiv 2104.09864), the same source in every kernel set;
 * only mul, add, sub in f64 and f32, so the bits do not depend on how the compiler vectorises it.
 * The angle is position · inv_freq rounded to f32, as the models were trained; its sine and cosine
 * are exact to f32 rounding: argument reduction by π/2 in f64, Taylor to r^13. */
#pragma once

#include "kernels/ops.h"

enum { ROPE_CHUNK = 64 };

static void sincos_chunk(const float *angle, uint32_t n, float factor, float *out_sin,
                         float *out_cos)
{
    const double two_over_pi = 0.63661977236758134308, magic = 6755399441055744.0; /* 1.5·2^52 */
    const double pio2_hi = 1.57079632673412561417e+00, pio2_lo = 6.07710050650619224932e-11;
    for (uint32_t i = 0; i < n; i++) {
        double x = (double)angle[i];
        double turns = x * two_over_pi + magic - magic; /* nearest integer for |x| < 2^51 */
        double r = x - turns * pio2_hi - turns * pio2_lo, r2 = r * r;
        double s =
            r +
            r * r2 *
                (-1.0 / 6 +
                 r2 * (1.0 / 120 + r2 * (-1.0 / 5040 +
                                         r2 * (1.0 / 362880 + r2 * (-1.0 / 39916800 +
                                                                    r2 * (1.0 / 6227020800.0))))));
        double c =
            1.0 + r2 * (-0.5 + r2 * (1.0 / 24 +
                                     r2 * (-1.0 / 720 +
                                           r2 * (1.0 / 40320 +
                                                 r2 * (-1.0 / 3628800 + r2 * (1.0 / 479001600))))));
        double quarter = turns - 4.0 * ((turns * 0.25 + magic) - magic); /* −2..2 */
        double is_odd = quarter * quarter == 1.0 ? 1.0 : 0.0;
        double sin_value = is_odd != 0.0 ? c : s, cos_value = is_odd != 0.0 ? s : c;
        /* quadrants: 0 (s, c), 1 (c, −s), ±2 (−s, −c), −1 (−c, s) */
        double sin_sign = quarter == -1.0 || quarter * quarter == 4.0 ? -1.0 : 1.0;
        double cos_sign = quarter == 1.0 || quarter * quarter == 4.0 ? -1.0 : 1.0;
        out_sin[i] = (float)(sin_sign * sin_value) * factor;
        out_cos[i] = (float)(cos_sign * cos_value) * factor;
    }
}

static void rope_row(float *restrict x, uint32_t n_heads, uint32_t position,
                     const struct rope_params *p)
{
    float angle[ROPE_CHUNK], sin_of[ROPE_CHUNK], cos_of[ROPE_CHUNK];
    uint32_t half = p->n_rot / 2;
    for (uint32_t begin = 0; begin < half; begin += ROPE_CHUNK) {
        uint32_t n = half - begin < ROPE_CHUNK ? half - begin : ROPE_CHUNK;
        for (uint32_t i = 0; i < n; i++)
            angle[i] = (float)position * p->inv_freq[begin + i];
        sincos_chunk(angle, n, p->attention_factor, sin_of, cos_of);
        for (uint32_t h = 0; h < n_heads; h++) {
            float *head = x + (size_t)h * p->head_dim;
            if (p->style == ROPE_INTERLEAVED) {
                head += 2 * begin;
                for (uint32_t i = 0; i < n; i++) {
                    float a = head[2 * i], b = head[2 * i + 1];
                    head[2 * i] = a * cos_of[i] - b * sin_of[i];
                    head[2 * i + 1] = a * sin_of[i] + b * cos_of[i];
                }
            } else {
                head += begin;
                for (uint32_t i = 0; i < n; i++) {
                    float a = head[i], b = head[half + i];
                    head[i] = a * cos_of[i] - b * sin_of[i];
                    head[half + i] = a * sin_of[i] + b * cos_of[i];
                }
            }
        }
    }
}
