/* attention_impl.h: attention in 16-lane vectors (attention_walk_impl.h). Operations per query and
 * partition: 2·128·(head_dim + v_dim). Bytes: 128 vectors of K and V, once per ATTENTION_NQ
 * queries; after the first time from L2. */
#pragma once

#include "kernels/cpu/attention/attention_float_impl.h"
#include "kernels/cpu/attention/attention_int8_impl.h"
#include "kernels/cpu/attention/attention_latent_impl.h"
#include "kernels/cpu/attention/attention_steps_impl.h"

static void group_scores(const struct attention_tile *t, const struct attention_scratch *s,
                         const struct partition *part, const struct group *g)
{
    uint32_t n = t->kv->head_dim;
    if (part->dtype == DTYPE_I8) {
        struct wide_codes a;
        for (uint32_t i = 0; i < g->n; i++) {
            a.codes[i] = s->codes + (g->q + i) * s->query_bytes;
            a.sums[i] = s->q_sums[g->q + i];
            a.scales[i] = s->q_scales[g->q + i];
        }
        scores_int8(&a, part, s->dim, g->whole, g->p, g->n);
        return;
    }
    const float *a[ATTENTION_NQ];
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t row = (g->q + i) / t->n_heads, head = (g->q + i) % t->n_heads;
        a[i] = t->q + row * t->q_stride + (size_t)head * n;
    }
    if (part->dtype == DTYPE_F32)
        scores_f32(a, part, n, g->whole, g->p, g->n);
    else if (part->dtype == DTYPE_F16)
        scores_f16(a, part, n, g->whole, g->p, g->n);
    else
        scores_bf16(a, part, n, g->whole, g->p, g->n);
}

static void group_values(const struct attention_scratch *s, const struct partition *part,
                         const struct group *g, float *const out[])
{
    if (part->dtype == DTYPE_I8) {
        struct wide_codes a;
        for (uint32_t i = 0; i < g->n; i++)
            weigh_scales(g->p[i], part, g->first[i] < g->last[i] ? g->whole : 0,
                         s->weights + (size_t)i * 2 * PART, i, &a);
        values_int8(&a, part, s->v_dim, g->most, out, g->n);
        return;
    }
    const float *a[ATTENTION_NQ];
    for (uint32_t i = 0; i < g->n; i++)
        a[i] = g->p[i];
    if (part->dtype == DTYPE_F32)
        values_f32(a, part, s->v_dim, g->most, out, g->n);
    else if (part->dtype == DTYPE_F16)
        values_f16(a, part, s->v_dim, g->most, out, g->n);
    else
        values_bf16(a, part, s->v_dim, g->most, out, g->n);
}

/* P·V of one query over [first, last) alone: values outside are not multiplied at all, not even by
 * 0. For finite values the chain, and so the bits, equal those of weigh_values(). */
static void value_alone(const struct attention_scratch *s, const struct partition *part,
                        const float *p, uint32_t first, uint32_t last, float *out)
{
    for (uint32_t d = 0; d < s->v_dim; d += 16) {
        v16 sum = v_zero();
        for (uint32_t j = first; j < last; j++) {
            const uint8_t *v = part->v[j / KV_TILE] + j % KV_TILE * part->v_item +
                               (size_t)d * dtype_block_bytes(part->dtype);
            sum = v_fma(v_set1(p[j]), load_v(v, part->dtype), sum);
        }
        v_store(out + d, sum);
    }
}

/* Repairs 0 · infinity: an infinite value outside a query's range makes the query's result NaN. */
static void mend_values(const struct attention_scratch *s, const struct partition *part,
                        const struct group *g, float *const out[])
{
    for (uint32_t i = 0; i < g->n && part->dtype != DTYPE_I8; i++)
        if (g->first[i] < g->last[i] && (g->first[i] > 0 || g->last[i] < g->most) &&
            !is_finite(out[i], s->v_dim))
            value_alone(s, part, g->p[i], g->first[i], g->last[i], out[i]);
}

/* For an int8 cache: converts queries to wide codes; t->scale becomes part of their scale. */
static void prepare_queries(const struct attention_tile *t, const struct attention_scratch *s)
{
    uint32_t n = t->kv->head_dim;
    for (uint32_t q = 0; q < t->n_rows * t->n_heads && t->kv->dtype == DTYPE_I8; q++) {
        const float *row = t->q + q / t->n_heads * t->q_stride;
        struct wide_codes one;
        widen_codes(row + (size_t)(q % t->n_heads) * n, n, s->dim, s->codes + q * s->query_bytes, 0,
                    &one);
        s->q_sums[q] = one.sums[0];
        s->q_scales[q] = one.scales[0] * t->scale;
    }
}

static void prepare_partition(const struct attention_tile *t, const struct attention_scratch *s,
                              const struct partition *part)
{
    (void)t;
    (void)s;
    (void)part;
}

static struct partition untiled_partition(const struct attention_tile *t,
                                          const struct attention_scratch *s, uint32_t base,
                                          uint32_t n_positions)
{
    return is_latent(t->kv) ? latent_partition(t, s, base, n_positions)
                            : copy_partition(t, s, base, n_positions);
}

#include "kernels/cpu/attention/attention_walk_impl.h"

static void attention(const struct attention_tile *t, void *scratch)
{
    struct attention_scratch s =
        lay_out_scratch(scratch, t->kv, (size_t)2 * attention_dim(t->kv->head_dim));
    walk_units(t, &s);
}

static void attention_fold(const struct attention_tile *t)
{
    uint32_t dim = attention_dim(t->kv->v_dim), begin = t->unit_begin / t->n_groups;
    for (uint32_t q = 0; q < t->n_rows * t->n_heads; q++)
        for (uint32_t i = begin + 1; i < t->unit_end / t->n_groups; i++)
            fold(attention_result(t, begin, q), attention_result(t, i, q), dim);
    for (uint32_t g = 0; g < t->n_groups; g++)
        finish_group(t, g, attention_result(t, begin, 0));
}
