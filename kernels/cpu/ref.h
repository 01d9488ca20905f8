/* ref.h: the plain kernel set, the oracle for all others: scalar loops that spell the contract's
 * expressions (lanes, trees, chains) one by one. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/exp_const.h"
#include "kernels/cpu/inner.h"

enum { LANES = 16 };

/* The fixed tree over 16 lanes. */
static inline float ref_sum_lanes(float lanes[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

static inline float ref_exp(float x)
{
    if (x < EXP_MIN)
        return 0.0f;
    if (isnan(x))
        return x;
    float c = x > EXP_MAX ? EXP_MAX : x, n = rintf(c * EXP_LOG2E);
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, c));
    float p = fmaf(EXP_C5, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, EXP_C1);
    p = fmaf(p, r, EXP_C0);
    p = fmaf(p, r * r, r) + 1.0f;
    return p * ldexpf(1.0f, (int)n);
}

void ref_abs_stats(const float *x, uint32_t n, float *out_sum, float *out_max);
void ref_quantize(struct act_cpu *act, uint32_t row, const float *x, uint32_t n, float inv);
void ref_round_bf16(uint32_t *dst, const float *x);
void ref_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps);
void ref_layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n,
                    float eps);
void ref_add(float *y, const float *x, uint32_t n);
void ref_act_mul(float *y, const float *gate, const float *up, uint32_t n, enum activation kind);
void ref_kv_store(void *dst, enum dtype type, const float *src, uint32_t n);
float ref_kv_quantize(uint8_t *codes, const float *x, uint32_t n);
void ref_attention(const struct attention_tile *tile, void *scratch);
void ref_attention_fold(const struct attention_tile *tile);
