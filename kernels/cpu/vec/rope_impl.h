/* rope_impl.h: rotary embedding of one row (arXiv 2104.09864), the same source in every kernel set.
 * Only mul, add, sub in f64 and f32, so the bits do not depend on the compiler's vectorisation. The
 * angle is position · inv_freq rounded to f32, as in the models' training. */
#pragma once

#include "kernels/maths.h"
#include "kernels/ops.h"

enum { ROPE_CHUNK = 64 };

static void rope_row(float *restrict x, uint32_t n_heads, uint32_t position,
                     const struct rope_params *p)
{
    float angle[ROPE_CHUNK], sin_of[ROPE_CHUNK], cos_of[ROPE_CHUNK];
    uint32_t half = p->n_rot / 2;
    for (uint32_t begin = 0; begin < half; begin += ROPE_CHUNK) {
        uint32_t n = half - begin < ROPE_CHUNK ? half - begin : ROPE_CHUNK;
        for (uint32_t i = 0; i < n; i++)
            angle[i] = (float)position * p->inv_freq[begin + i];
        for (uint32_t i = 0; i < n; i++)
            maths_sincos(angle[i], p->attention_factor, &sin_of[i], &cos_of[i]);
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
