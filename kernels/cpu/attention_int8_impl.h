/* attention_int8_impl.h: scores and P·V of one partition of an int8 cache, in integers. Queries,
 * and the weights of a partition times the scales of V, become wide codes of 15 bits with one scale
 * each (kv_code.h); the sums over head_dim, or over positions, are then exact, so their order is
 * free. Operations per query and partition: as attention_impl.h, half the instructions by VNNI. */
#pragma once

#include "kernels/cpu/attention_part.h"
#include "kernels/cpu/kv_code.h"
#include "kernels/cpu/vector_impl.h"

/* Up to DOT_NQ queries, or their weights, as wide codes. */
struct wide_codes {
    const uint8_t *codes[ATTENTION_NQ];
    int32_t sums[ATTENTION_NQ];
    float scales[ATTENTION_NQ];
};

/* What a code is worth where the largest |x| becomes `limit`; *out_inv is what x is multiplied by.
 */
static float code_scale(const float *x, uint32_t n, float limit, float *out_inv)
{
    v16 max = v_zero(), poison = v_zero();
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = n - i >= 16 ? v_load(x + i) : v_load_n(x + i, n - i);
        max = v_max(v_abs(v), max);
        poison = v_fma(v, v_zero(), poison);
    }
    return kv_code_scale(v_max_lanes(max), v_sum(poison), limit, out_inv);
}

static inline v16 code_of(v16 x, float inv, float limit)
{
    v16 a = v_max(v_mul(x, v_set1(inv)), v_set1(-limit)); /* NaN becomes −limit */
    return v_rint(v_min(a, v_set1(limit)));
}

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

/* x[n], then zeros up to a multiple of 16, as the wide codes number i of *out, whose planes are
 * n_pad apart. */
static void widen_codes(const float *x, uint32_t n, uint32_t n_pad, uint8_t *codes, uint32_t i,
                        struct wide_codes *out)
{
    float inv;
    v16 sum = v_zero();
    out->scales[i] = code_scale(x, n, WIDE_CODE_MAX, &inv);
    for (uint32_t at = 0; at < n; at += 16) {
        v16 v = n - at >= 16 ? v_load(x + at) : v_load_n(x + at, n - at);
        v16 a = code_of(v, inv, WIDE_CODE_MAX);
        store_wide(codes, n_pad, at, a);
        sum = v_add(sum, a);
    }
    out->codes[i] = codes;
    out->sums[i] = (int32_t)v_sum(sum); /* exact: below 2^24 */
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
        const uint8_t *v[N_TILES], *next[N_TILES];
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

/* The weights of one query (0 outside what it sees) times the scales of V, as wide codes number i
 * of *out. p is overwritten. */
static void weigh_scales(float *p, const struct partition *part, uint32_t n, uint8_t *codes,
                         uint32_t i, struct wide_codes *out)
{
    for (uint32_t at = 0; at < n; at += 16) {
        const float *scales = (const float *)(const void *)part->v_scales[at / KV_TILE];
        v16 w = v_load(p + at), zero = v_zero();
        v_store(p + at, v_select_lt(zero, w, v_mul(w, v_load(scales)), zero));
    }
    widen_codes(p, n, PART, codes, i, out);
}
