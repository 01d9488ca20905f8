/* attention_int8_impl.h: scores and P·V of one partition of an int8 cache, in integers. Queries
 * become wide codes of 15 bits with a scale each (kv_code.h). So do the weights of a partition
 * times the scales of V. The sums over head_dim, or over positions, are then exact, so their order
 * is free. Operations per query and partition: as in attention_impl.h, half the instructions with
 * VNNI. */
#pragma once

#include "kernels/cpu/attention/attention_codes_impl.h"

static float kv_quantize(uint8_t *codes, const float *x, uint32_t n)
{
    float inv, scale = code_scale(x, n, KV_CODE_MAX, &inv);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        store_biased(codes + i, code_of(v_load(x + i), inv, KV_CODE_MAX));
    if (i < n) {
        uint8_t tail[16];
        store_biased(tail, code_of(v_load_n(x + i, n - i), inv, KV_CODE_MAX));
        memcpy(codes + i, tail, n - i);
    }
    return scale;
}

ALWAYS_INLINE void int8_scores_as(const struct wide_codes *q, uint32_t first,
                                  const struct partition *part, uint32_t dim, uint32_t n,
                                  float *const p[], int nq)
{
    for (uint32_t tile = 0; tile * KV_TILE < n;) {
        float *at[DOT_NQ];
        bool many = (tile + DOT_NV) * KV_TILE <= n;
        for (int i = 0; i < nq; i++)
            at[i] = p[i] + (size_t)tile * KV_TILE;
        if (many)
            dot_codes(q->codes + first, q->sums + first, dim, part->k + tile, part->v + tile,
                      dim / 4, false, 0, q->scales + first, at, nq, DOT_NV);
        else
            dot_codes(q->codes + first, q->sums + first, dim, part->k + tile, part->v + tile,
                      dim / 4, false, 0, q->scales + first, at, nq, 1);
        tile += many ? DOT_NV : 1;
    }
}

ALWAYS_INLINE void int8_values_as(const struct wide_codes *w, uint32_t first,
                                  const struct partition *part, uint32_t dim, uint32_t n,
                                  float *const out[], int nq)
{
    uint32_t n_groups = (n + 3) / 4;
    size_t stride = part->v_item * 4;
    for (uint32_t d = 0; d < dim;) {
        const uint8_t *v[PART_TILES], *next[PART_TILES];
        float *at[DOT_NQ];
        bool many = d + 16 * DOT_NV <= dim;
        for (uint32_t t = 0; t * KV_TILE < n; t++) {
            v[t] = part->v[t] + (size_t)d * 4;
            next[t] = part->next_k[t] + (size_t)d * 4;
        }
        for (int i = 0; i < nq; i++)
            at[i] = out[i] + d;
        if (many)
            dot_codes(w->codes + first, w->sums + first, PART, v, next, n_groups, true, stride,
                      w->scales + first, at, nq, DOT_NV);
        else
            dot_codes(w->codes + first, w->sums + first, PART, v, next, n_groups, true, stride,
                      w->scales + first, at, nq, 1);
        d += many ? 16 * DOT_NV : 16;
    }
}

#define SPECIALISE_INT8(name, call)                                                                \
    static void name(const struct wide_codes *a, const struct partition *part, uint32_t dim,       \
                     uint32_t n, float *const out[], uint32_t nq)                                  \
    {                                                                                              \
        uint32_t i = 0;                                                                            \
        for (; i + DOT_NQ <= nq; i += DOT_NQ)                                                      \
            call(a, i, part, dim, n, out + i, DOT_NQ);                                             \
        for (; i + 2 <= nq; i += 2)                                                                \
            call(a, i, part, dim, n, out + i, 2);                                                  \
        for (; i < nq; i++)                                                                        \
            call(a, i, part, dim, n, out + i, 1);                                                  \
    }
SPECIALISE_INT8(scores_int8, int8_scores_as)
SPECIALISE_INT8(values_int8, int8_values_as)
