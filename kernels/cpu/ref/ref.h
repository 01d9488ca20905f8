/* ref.h: the plain kernel set, the oracle for all others. Scalar loops write out the contract's
 * expressions (lanes, trees, chains). */
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/inner.h"
#include "kernels/maths.h"

enum { LANES = 16 };

/* Adds 16 lanes by the fixed tree. */
static inline float ref_sum_lanes(float lanes[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

void ref_abs_stats(const float *x, uint32_t n, float *out_sum, float *out_max);
void ref_quantize(struct act_cpu *act, uint32_t row, const float *x, uint32_t n, float inv);
void ref_round_bf16(uint32_t *dst, const float *x);
void ref_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps);
void ref_layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n,
                    float eps);
void ref_add(float *y, const float *x, uint32_t n);
void ref_scale(float *x, uint32_t n, float factor, float softcap);
void ref_act_mul(float *y, const float *gate, const float *up, uint32_t n, enum activation kind);
void ref_router_scores(float *scores, const float *logits, uint32_t n, enum router_score score);
void ref_add_weighted(float *y, const float *x, const float *bias, float w, uint32_t n);
void ref_kv_store(void *dst, enum dtype type, const float *src, uint32_t n);
float ref_kv_quantize(uint8_t *codes, const float *x, uint32_t n);
void ref_attention(const struct attention_tile *tile, void *scratch);
void ref_attention_fold(const struct attention_tile *tile);

/* recurrent_span.h */
void ref_conv_taps(float *taps, size_t taps_stride, const float *w, uint32_t n, uint32_t width);
void ref_conv_row(const struct conv_row *row);
void ref_l2_norm(float *y, const float *x, uint32_t n, float eps, float scale);
void ref_span_gates(const struct span_gates *gates);
void ref_delta_span(const struct state_span *span);
void ref_ssm_span(const struct state_span *span);
