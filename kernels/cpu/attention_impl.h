/* attention_impl.h: attention of a tile of query rows of one sequence against one KV head, in
 * 16-lane vectors. Partition by partition of 128 positions: scores, softmax within the partition,
 * P·V, and the partition is folded into the running result in index order (or left for
 * attention_fold(), where several threads share a context). What a query computes depends on its
 * own position only. Operations per query and partition: 4·128·head_dim; bytes: those of 128
 * vectors of K and V, once per ATTENTION_NQ queries, from L2 after the first. Sources: arXiv
 * 2205.14135 (online softmax), 2309.06180 (paged KV). */
#pragma once

#include "kernels/cpu/attention_float_impl.h"
#include "kernels/cpu/attention_int8_impl.h"

struct attention_scratch {
    uint8_t *k, *v;             /* [PART] vectors: untiled caches, copied to tiles */
    float *k_scales, *v_scales; /* [PART] */
    float *p;                   /* [ATTENTION_NQ][PART] scores, then weights */
    float *part;                /* [ATTENTION_NQ] results of this partition */
    float *out;                 /* [ATTENTION_MAX_Q] running results */
    uint8_t *codes;             /* [ATTENTION_MAX_Q][2·dim] queries for int8 */
    uint8_t *weights;           /* [ATTENTION_NQ][2·PART] */
    float *q_scales;            /* [ATTENTION_MAX_Q] */
    int32_t *q_sums;
    uint32_t dim, result; /* head_dim padded to 16; floats of a result */
};

/* attention_scratch_bytes() has the size. */
static struct attention_scratch lay_out_scratch(void *at, uint32_t head_dim)
{
    struct attention_scratch s = {.dim = attention_dim(head_dim)};
    s.result = attention_result_floats(head_dim);
    s.out = at;
    s.part = s.out + (size_t)ATTENTION_MAX_Q * s.result;
    s.p = s.part + (size_t)ATTENTION_MAX_NQ * s.result;
    s.q_scales = s.p + (size_t)ATTENTION_MAX_NQ * PART;
    s.q_sums = (int32_t *)(void *)(s.q_scales + ATTENTION_MAX_Q);
    s.k_scales = (float *)(void *)(s.q_sums + ATTENTION_MAX_Q);
    s.v_scales = s.k_scales + PART;
    s.codes = (uint8_t *)(void *)(s.v_scales + PART);
    s.weights = s.codes + (size_t)ATTENTION_MAX_Q * 2 * s.dim;
    s.k = s.weights + (size_t)ATTENTION_MAX_NQ * 2 * PART;
    s.v = s.k + (size_t)PART * s.dim * sizeof(float);
    return s;
}

/* Copies a vector of an untiled cache, number i of its partition, to tiles of f32; V beyond
 * head_dim is 0. */
static void copy_floats(const struct kv_layer *kv, const struct attention_scratch *s, size_t item,
                        uint32_t i)
{
    size_t place = item * kv_vector_bytes(kv->dtype, kv->head_dim);
    float vector[ATTENTION_MAX_HEAD_DIM];
    float *k = (float *)(void *)s->k + (size_t)(i - i % KV_TILE) * s->dim + i % KV_TILE;
    float *v = (float *)(void *)s->v + (size_t)i * s->dim;
    dtype_to_f32(kv->dtype, (const uint8_t *)kv->k + place, kv->head_dim, vector);
    for (uint32_t d = 0; d < kv->head_dim; d++)
        k[(size_t)d * KV_TILE] = vector[d];
    dtype_to_f32(kv->dtype, (const uint8_t *)kv->v + place, kv->head_dim, v);
    for (uint32_t d = kv->head_dim; d < s->dim; d++)
        v[d] = 0.0f;
}

/* The same of codes. What stands beyond head_dim meets codes of 0 (K) or is not kept (V). */
static void copy_codes(const struct kv_layer *kv, const struct attention_scratch *s, size_t item,
                       uint32_t i)
{
    const uint8_t *k = (const uint8_t *)kv->k + kv_codes_at(kv, item),
                  *v = (const uint8_t *)kv->v + kv_codes_at(kv, item);
    size_t tile = (size_t)(i - i % KV_TILE) * s->dim;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        s->k[tile + kv_key_code(i % KV_TILE, d)] = k[d];
        s->v[tile + kv_value_code(s->dim, i % KV_TILE, d)] = v[d];
    }
    memcpy(s->k_scales + i, (const uint8_t *)kv->k + kv_scale_at(kv, item), sizeof(float));
    memcpy(s->v_scales + i, (const uint8_t *)kv->v + kv_scale_at(kv, item), sizeof(float));
}

/* Where the partition at `base`, as far as the first n_positions go, is, in an untiled cache. */
static struct partition copy_partition(const struct attention_tile *t,
                                       const struct attention_scratch *s, uint32_t base,
                                       uint32_t n_positions)
{
    const struct kv_layer *kv = t->kv;
    uint32_t n = n_positions - base < PART ? n_positions - base : PART;
    bool codes = kv->dtype == DTYPE_I8;
    size_t vector = codes ? s->dim : s->dim * sizeof(float);
    struct partition part = {.base = base, .dtype = codes ? DTYPE_I8 : DTYPE_F32, .v_item = vector};
    for (uint32_t i = 0; i < n; i++) {
        size_t item = kv_item_of(kv, t->table, t->i_kv, base + i);
        if (codes)
            copy_codes(kv, s, item, i);
        else
            copy_floats(kv, s, item, i);
    }
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        part.k[i] = s->k + i * KV_TILE * vector;
        part.v[i] = s->v + i * KV_TILE * vector;
        part.k_scales[i] = (const uint8_t *)(s->k_scales + (size_t)i * KV_TILE);
        part.v_scales[i] = (const uint8_t *)(s->v_scales + (size_t)i * KV_TILE);
    }
    return part;
}

/* The same in a tiled one, where it lies. Its scales are fetched. */
static struct partition find_partition(const struct attention_tile *t, uint32_t base,
                                       uint32_t n_positions)
{
    const struct kv_layer *kv = t->kv;
    uint32_t n = n_positions - base < PART ? n_positions - base : PART;
    const uint8_t *k = kv->k, *v = kv->v;
    struct partition part = {.base = base, .dtype = kv->dtype};
    part.v_item = (size_t)kv->head_dim * dtype_block_bytes(kv->dtype);
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        size_t item = kv_item_of(kv, t->table, t->i_kv, base + i * KV_TILE);
        size_t at = kv->dtype == DTYPE_I8 ? kv_codes_at(kv, item) : item * part.v_item;
        part.k[i] = k + at;
        part.v[i] = v + at;
        if (kv->dtype == DTYPE_I8) {
            part.k_scales[i] = k + kv_scale_at(kv, item);
            part.v_scales[i] = v + kv_scale_at(kv, item);
            __builtin_prefetch(part.k_scales[i]);
            __builtin_prefetch(part.v_scales[i]);
        }
    }
    return part;
}

/* softcap·tanh(x / softcap) = softcap·(1 − 2 / (1 + exp(2x / softcap))) */
static inline v16 v_softcap(v16 x, float cap)
{
    v16 e = v_exp(v_mul(x, v_set1(2.0f / cap))), one = v_set1(1.0f);
    return v_mul(v_set1(cap), v_sub(one, v_div(v_set1(2.0f), v_add(one, e))));
}

/* Scores p[0, n) of one query become weights; those outside [first, last) weigh exactly 0. n is a
 * multiple of 16. */
static void softmax_partition(const struct attention_tile *t, const struct partition *part,
                              float *p, uint32_t first, uint32_t last, uint32_t n, float *out_max,
                              float *out_sum)
{
    v16 max = v_set1(-INFINITY), sum = v_zero(), low = v_set1((float)first),
        high = v_set1((float)last), scale = v_set1(t->scale);
    v16 lane = v_load((const float[16]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    for (uint32_t i = 0; i < n; i += 16) {
        if (part->dtype == DTYPE_I8) /* t->scale is in the query's */
            scale = v_load((const float *)(const void *)part->k_scales[i / KV_TILE]);
        v16 x = v_mul(v_load(p + i), scale);
        if (t->softcap > 0.0f)
            x = v_softcap(x, t->softcap);
        if (i < first || i + 16 > last) {
            v16 at = v_add(lane, v_set1((float)i));
            x = v_select_lt(at, low, v_set1(-INFINITY), x);
            x = v_select_lt(at, high, x, v_set1(-INFINITY));
        }
        v_store(p + i, x);
        max = v_max(max, x);
    }
    *out_max = v_max_lanes(max);
    for (uint32_t i = 0; i < n; i += 16) {
        v16 e = v_exp(v_sub(v_load(p + i), v_set1(*out_max)));
        v_store(p + i, e);
        sum = v_add(sum, e);
    }
    *out_sum = v_sum(sum);
}

/* Folds a partition's result (P·V, then at `dim` the maximum and the sum, 0 where the query sees
 * nothing of it) into a running one of the same form. */
static void fold(float *out, const float *part, uint32_t dim)
{
    float *max = out + dim, *sum = out + dim + 1;
    if (part[dim + 1] == 0.0f)
        return;
    if (*sum == 0.0f) { /* the first partition that this query sees */
        memcpy(out, part, (dim + 2) * sizeof(float));
        return;
    }
    float most = *max > part[dim] ? *max : part[dim];
    float lanes[16] = {*max - most, part[dim] - most};
    v_store(lanes, v_exp(v_load(lanes)));
    v16 keep = v_set1(lanes[0]), take = v_set1(lanes[1]);
    *sum = *sum * lanes[0] + part[dim + 1] * lanes[1];
    *max = most;
    for (uint32_t d = 0; d < dim; d += 16)
        v_store(out + d, v_add(v_mul(v_load(out + d), keep), v_mul(v_load(part + d), take)));
}

/* What a query at `position` sees of the partition at `base`: [first, last) within it. */
static void visible(const struct attention_tile *t, uint32_t position, uint32_t base,
                    uint32_t *out_first, uint32_t *out_last)
{
    uint64_t end = (uint64_t)position + 1, begin = 0;
    if (t->window > 0 && end > t->window)
        begin = end - t->window;
    *out_last = end <= base ? 0 : end - base < PART ? (uint32_t)(end - base) : PART;
    *out_first = begin <= base ? 0 : begin - base < PART ? (uint32_t)(begin - base) : PART;
}

/* Queries of a tile that go through a partition together. */
struct group {
    uint32_t q, n; /* [q, q + n) of the tile's rows × heads */
    uint32_t first[ATTENTION_NQ], last[ATTENTION_NQ];
    uint32_t most;  /* largest last */
    uint32_t whole; /* `most` up to a multiple of KV_TILE */
    float *p[ATTENTION_NQ];
};

static void group_scores(const struct attention_tile *t, const struct attention_scratch *s,
                         const struct partition *part, const struct group *g)
{
    uint32_t n = t->kv->head_dim;
    if (part->dtype == DTYPE_I8) {
        struct wide_codes a;
        for (uint32_t i = 0; i < g->n; i++) {
            a.codes[i] = s->codes + (size_t)(g->q + i) * 2 * s->dim;
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
        values_int8(&a, part, s->dim, g->most, out, g->n);
        return;
    }
    const float *a[ATTENTION_NQ];
    for (uint32_t i = 0; i < g->n; i++)
        a[i] = g->p[i];
    if (part->dtype == DTYPE_F32)
        values_f32(a, part, s->dim, g->most, out, g->n);
    else if (part->dtype == DTYPE_F16)
        values_f16(a, part, s->dim, g->most, out, g->n);
    else
        values_bf16(a, part, s->dim, g->most, out, g->n);
}

static bool is_finite(const float *x, uint32_t n)
{
    v16 poison = v_zero();
    for (uint32_t i = 0; i < n; i += 16)
        poison = v_fma(v_load(x + i), v_zero(), poison);
    return v_sum(poison) == 0.0f;
}

/* P·V of one query over [first, last) alone: what stands outside is not even multiplied by 0. The
 * same chain, and so the same bits, as weigh_values() makes of finite values. */
static void value_alone(const struct attention_scratch *s, const struct partition *part,
                        const float *p, uint32_t first, uint32_t last, float *out)
{
    for (uint32_t d = 0; d < s->dim; d += 16) {
        v16 sum = v_zero();
        for (uint32_t j = first; j < last; j++) {
            const uint8_t *v = part->v[j / KV_TILE] + j % KV_TILE * part->v_item +
                               (size_t)d * dtype_block_bytes(part->dtype);
            sum = v_fma(v_set1(p[j]), load_v(v, part->dtype), sum);
        }
        v_store(out + d, sum);
    }
}

/* Queries [q, q + nq) of the tile against a partition; results[i] takes what query q + i has of it.
 */
static void attend(const struct attention_tile *t, const struct attention_scratch *s,
                   const struct partition *part, uint32_t q, uint32_t nq, float *const results[])
{
    struct group g = {.q = q, .n = nq};
    for (uint32_t i = 0; i < nq; i++) {
        g.p[i] = s->p + (size_t)i * PART;
        visible(t, t->positions[(q + i) / t->n_heads], part->base, &g.first[i], &g.last[i]);
        g.most = g.last[i] > g.most ? g.last[i] : g.most;
        results[i][s->dim + 1] = 0.0f;
    }
    g.whole = (g.most + KV_TILE - 1) / KV_TILE * KV_TILE;
    group_scores(t, s, part, &g);
    for (uint32_t i = 0; i < nq; i++)
        if (g.first[i] < g.last[i])
            softmax_partition(t, part, g.p[i], g.first[i], g.last[i], g.whole, &results[i][s->dim],
                              &results[i][s->dim + 1]);
    group_values(s, part, &g, results);
    /* 0 · infinity: a value that some of the queries do not see spoils what they have. */
    for (uint32_t i = 0; i < nq && part->dtype != DTYPE_I8; i++)
        if (g.first[i] < g.last[i] && (g.first[i] > 0 || g.last[i] < g.most) &&
            !is_finite(results[i], s->dim))
            value_alone(s, part, g.p[i], g.first[i], g.last[i], results[i]);
}

/* Queries as wide codes; t->scale goes into their scale. */
static void widen_queries(const struct attention_tile *t, const struct attention_scratch *s)
{
    uint32_t n = t->kv->head_dim;
    for (uint32_t q = 0; q < t->n_rows * t->n_heads; q++) {
        const float *row = t->q + q / t->n_heads * t->q_stride;
        struct wide_codes one;
        widen_codes(row + (size_t)(q % t->n_heads) * n, n, s->dim,
                    s->codes + (size_t)q * 2 * s->dim, 0, &one);
        s->q_sums[q] = one.sums[0];
        s->q_scales[q] = one.scales[0] * t->scale;
    }
}

/* y of query q of a group from its result over all partitions. */
static void finish_query(const struct attention_tile *t, uint32_t q, const float *out, uint32_t dim)
{
    uint32_t n = t->kv->head_dim;
    float *y = t->y + q / t->n_heads * t->y_stride + (size_t)(q % t->n_heads) * n;
    float scale = 1.0f / out[dim + 1];
    for (uint32_t d = 0; d + 16 <= n; d += 16)
        v_store(y + d, v_mul(v_load(out + d), v_set1(scale)));
    for (uint32_t d = n & ~15u; d < n; d++)
        y[d] = out[d] * scale;
}

/* y of group g from the results of all queries of the tile. */
static void finish_group(const struct attention_tile *t, uint32_t g, const float *results)
{
    uint32_t first, result = attention_result_floats(t->kv->head_dim);
    struct attention_tile group = attention_group_tile(t, g, &first);
    for (uint32_t q = 0; q < t->n_rows * group.n_heads; q++)
        finish_query(&group, q, results + (size_t)(first + q) * result,
                     attention_dim(t->kv->head_dim));
}

/* Goes through one unit: all queries of the group `t`, whose first one is number `first`. */
static void attend_unit(const struct attention_tile *whole, const struct attention_tile *t,
                        const struct attention_scratch *s, const struct partition *part,
                        uint32_t first)
{
    uint32_t n_q = t->n_rows * t->n_heads;
    bool keep = whole->parts != NULL;
    for (uint32_t q = 0; q < n_q; q += ATTENTION_NQ) {
        uint32_t nq = n_q - q < ATTENTION_NQ ? n_q - q : ATTENTION_NQ;
        if (t->positions[(q + nq - 1) / t->n_heads] < part->base && !keep)
            continue; /* rows ascend: those before the partition come first */
        float *results[ATTENTION_NQ];
        for (uint32_t j = 0; j < nq; j++)
            results[j] = keep ? attention_result(whole, part->base / PART, first + q + j)
                              : s->part + (size_t)j * s->result;
        attend(t, s, part, q, nq, results);
        for (uint32_t j = 0; j < nq && !keep; j++)
            fold(s->out + (size_t)(first + q + j) * s->result, results[j], s->dim);
    }
}

/* Of unit `unit`: the group alone, its scratch and, in a tiled cache, where its partition lies. */
struct unit {
    struct attention_tile t;
    struct attention_scratch s;
    struct partition part;
    uint32_t first; /* query */
};

static void find_unit(const struct attention_tile *t, const struct attention_scratch *s,
                      uint32_t unit, struct unit *out)
{
    out->t = attention_group_tile(t, unit % t->n_groups, &out->first);
    out->s = *s;
    out->s.codes += (size_t)out->first * 2 * s->dim;
    out->s.q_scales += out->first;
    out->s.q_sums += out->first;
    if (kv_is_tiled(t->kv))
        out->part =
            find_partition(&out->t, unit / t->n_groups * PART, t->positions[t->n_rows - 1] + 1);
}

static void attention(const struct attention_tile *t, void *scratch)
{
    struct attention_scratch s = lay_out_scratch(scratch, t->kv->head_dim);
    uint32_t n_q = t->n_rows * t->n_heads, longest = t->positions[t->n_rows - 1] + 1;
    struct unit units[2] = {{.first = 0}}, *at = &units[0], *next = &units[1];
    for (uint32_t q = 0; q < n_q && t->parts == NULL; q++)
        s.out[(size_t)q * s.result + s.dim + 1] = 0.0f;
    find_unit(t, &s, t->unit_begin, at);
    for (uint32_t u = t->unit_begin; u < t->unit_end; u++) {
        if (t->kv->dtype == DTYPE_I8 && u < t->unit_begin + t->n_groups)
            widen_queries(&at->t, &at->s); /* the first of the group */
        if (!kv_is_tiled(t->kv))
            at->part = copy_partition(&at->t, &s, u / t->n_groups * PART, longest);
        if (u + 1 < t->unit_end)
            find_unit(t, &s, u + 1, next);
        for (uint32_t j = 0; j < N_TILES; j++)
            at->part.next_k[j] = next->part.k[j] != NULL ? next->part.k[j] : at->part.k[0];
        attend_unit(t, &at->t, &at->s, &at->part, at->first);
        struct unit *done = at;
        at = next;
        next = done;
    }
    for (uint32_t g = 0; g < t->n_groups && t->parts == NULL; g++)
        finish_group(t, g, s.out);
}

static void attention_fold(const struct attention_tile *t)
{
    uint32_t dim = attention_dim(t->kv->head_dim), begin = t->unit_begin / t->n_groups;
    for (uint32_t q = 0; q < t->n_rows * t->n_heads; q++)
        for (uint32_t i = begin + 1; i < t->unit_end / t->n_groups; i++)
            fold(attention_result(t, begin, q), attention_result(t, i, q), dim);
    for (uint32_t g = 0; g < t->n_groups; g++)
        finish_group(t, g, attention_result(t, begin, 0));
}
