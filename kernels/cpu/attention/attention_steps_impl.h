/* attention_steps_impl.h: the steps around the products that all forms of attention share: find a
 * partition, softmax within it, fold the result. The caller is attention_walk_impl.h. The
 * includer must define the vectors (vec_*.h), store_wide() (attention_dot_*.h) and ATTENTION_NQ,
 * the number of queries per partition pass. */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/attention/attention_codes_impl.h"
#include "kernels/cpu/vec/exp_impl.h"

struct attention_scratch {
    uint8_t *k, *v;             /* [PART] vectors: untiled caches, copied to tiles */
    float *k_scales, *v_scales; /* [PART] */
    float *p;                   /* [ATTENTION_NQ][PART] scores, then weights */
    float *part;                /* [ATTENTION_NQ] results of the current partition */
    float *out;                 /* [ATTENTION_MAX_Q] running results */
    uint8_t *codes;    /* [ATTENTION_MAX_Q][query_bytes] queries in the form for products */
    uint8_t *weights;  /* [ATTENTION_NQ][2·PART] */
    uint8_t *products; /* ATTENTION_PRODUCT_BYTES */
    float *q_scales;   /* [ATTENTION_MAX_Q] */
    int32_t *q_sums;
    uint32_t dim, v_dim; /* head_dim and v_dim padded to 16 */
    uint32_t result;     /* floats of a result */
    size_t query_bytes;
};

/* Lays out the scratch of attention_scratch_bytes(); query_bytes is at most
 * attention_query_bytes(). */
static struct attention_scratch lay_out_scratch(void *at, const struct kv_layer *kv,
                                                size_t query_bytes)
{
    struct attention_scratch s = {.dim = attention_dim(kv->head_dim),
                                  .v_dim = attention_dim(kv->v_dim),
                                  .query_bytes = query_bytes};
    s.result = attention_result_floats(kv->v_dim);
    s.out = at;
    s.part = s.out + (size_t)ATTENTION_MAX_Q * s.result;
    s.p = s.part + (size_t)ATTENTION_MAX_NQ * s.result;
    s.q_scales = s.p + (size_t)ATTENTION_MAX_NQ * PART;
    s.q_sums = (int32_t *)(void *)(s.q_scales + ATTENTION_MAX_Q);
    s.k_scales = (float *)(void *)(s.q_sums + ATTENTION_MAX_Q);
    s.v_scales = s.k_scales + PART;
    s.codes = (uint8_t *)(void *)(s.v_scales + PART);
    s.weights =
        s.codes + (ATTENTION_MAX_Q + ATTENTION_MAX_NQ) * attention_query_bytes(kv->head_dim);
    s.products = s.weights + (size_t)ATTENTION_MAX_NQ * 2 * PART;
    s.k = s.products + ATTENTION_PRODUCT_BYTES;
    s.v = s.k + (size_t)PART * s.dim * sizeof(float);
    return s;
}

/* Copies vector number i of a partition in an untiled cache to tiles of f32; V beyond v_dim is 0.
 */
static inline void copy_floats(const struct kv_layer *kv, const struct attention_scratch *s,
                               size_t item, uint32_t i)
{
    uint32_t v_stride;
    const uint8_t *values = kv_values_of(kv, &v_stride);
    size_t k_at = item * ops_kv_vector_bytes(kv->dtype, kv->head_dim),
           v_at = item * ops_kv_vector_bytes(kv->dtype, v_stride);
    float vector[ATTENTION_MAX_HEAD_DIM];
    float *k = (float *)(void *)s->k + (size_t)(i - i % KV_TILE) * s->dim + i % KV_TILE;
    float *v = (float *)(void *)s->v + (size_t)i * s->v_dim;
    dtype_to_f32(kv->dtype, (const uint8_t *)kv->k + k_at, kv->head_dim, vector);
    for (uint32_t d = 0; d < kv->head_dim; d++)
        k[(size_t)d * KV_TILE] = vector[d];
    dtype_to_f32(kv->dtype, values + v_at, kv->v_dim, v);
    for (uint32_t d = kv->v_dim; d < s->v_dim; d++)
        v[d] = 0.0f;
}

/* Does the same for codes. Bytes beyond a vector meet codes of 0 (K) or give results that are
 * dropped (V). */
static inline void copy_codes(const struct kv_layer *kv, const struct attention_scratch *s,
                              size_t item, uint32_t i)
{
    uint32_t n = kv->head_dim, n_v = kv->v_dim, lane = i % KV_TILE, v_stride;
    const uint8_t *k = (const uint8_t *)kv->k, *v = kv_values_of(kv, &v_stride);
    uint8_t *keys = s->k + (size_t)(i - lane) * s->dim,
            *values = s->v + (size_t)(i - lane) * s->v_dim;
    for (uint32_t d = 0; d < n; d++)
        keys[kv_key_code(lane, d)] = k[kv_codes_at(kv, n, item) + d];
    for (uint32_t d = 0; d < n_v; d++)
        values[kv_value_code(s->v_dim, lane, d)] = v[kv_codes_at(kv, v_stride, item) + d];
    memcpy(s->k_scales + i, k + kv_scale_at(kv, n, item), sizeof(float));
    memcpy(s->v_scales + i, v + kv_scale_at(kv, v_stride, item), sizeof(float));
}

/* Copies the partition at `base`, up to the first n_positions, from an untiled cache. */
static inline struct partition copy_partition(const struct attention_tile *t,
                                              const struct attention_scratch *s, uint32_t base,
                                              uint32_t n_positions)
{
    const struct kv_layer *kv = t->kv;
    uint32_t n = n_positions - base < PART ? n_positions - base : PART;
    bool codes = kv->dtype == DTYPE_I8;
    size_t element = codes ? 1 : sizeof(float);
    struct partition part = {
        .base = base, .n = n, .dtype = codes ? DTYPE_I8 : DTYPE_F32, .v_item = s->v_dim * element};
    for (uint32_t i = 0; i < n; i++) {
        size_t item = kv_item_of(kv, t->table, t->i_kv, base + i);
        if (codes)
            copy_codes(kv, s, item, i);
        else
            copy_floats(kv, s, item, i);
    }
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        part.k[i] = s->k + i * KV_TILE * s->dim * element;
        part.v[i] = s->v + i * KV_TILE * part.v_item;
        part.k_scales[i] = (const uint8_t *)(s->k_scales + (size_t)i * KV_TILE);
        part.v_scales[i] = (const uint8_t *)(s->v_scales + (size_t)i * KV_TILE);
    }
    return part;
}

/* Finds the partition in a tiled cache, without a copy, and prefetches its scales. */
static struct partition find_partition(const struct attention_tile *t, uint32_t base,
                                       uint32_t n_positions)
{
    const struct kv_layer *kv = t->kv;
    uint32_t n = n_positions - base < PART ? n_positions - base : PART;
    const uint8_t *k = kv->k, *v = kv->v;
    struct partition part = {.base = base, .n = n, .dtype = kv->dtype};
    size_t k_item = (size_t)kv->head_dim * dtype_block_bytes(kv->dtype);
    part.v_item = (size_t)kv->v_dim * dtype_block_bytes(kv->dtype);
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        size_t item = kv_item_of(kv, t->table, t->i_kv, base + i * KV_TILE);
        bool codes = kv->dtype == DTYPE_I8;
        part.k[i] = k + (codes ? kv_codes_at(kv, kv->head_dim, item) : item * k_item);
        part.v[i] = v + (codes ? kv_codes_at(kv, kv->v_dim, item) : item * part.v_item);
        if (codes) {
            part.k_scales[i] = k + kv_scale_at(kv, kv->head_dim, item);
            part.v_scales[i] = v + kv_scale_at(kv, kv->v_dim, item);
            __builtin_prefetch(part.k_scales[i]);
            __builtin_prefetch(part.v_scales[i]);
        }
    }
    return part;
}

/* ALiBi of a query: its scores are reduced by slope · (its position − the key's position). */
struct bias {
    float slope, to_first; /* distance from the query to the partition's first position */
};

static inline struct bias bias_of(const struct attention_tile *t, const struct partition *part,
                                  uint32_t q)
{
    uint32_t position = t->positions[q / t->n_heads];
    struct bias none = {0.0f, 0.0f};
    if (t->slopes == NULL)
        return none;
    return (struct bias){t->slopes[q % t->n_heads],
                         (float)((int32_t)part->base - (int32_t)position)};
}

/* Turns the scores p[0, n) of one query into weights; weights outside [first, last) are exactly 0.
 * n is a multiple of 16. */
static void softmax_partition(const struct attention_tile *t, const struct partition *part,
                              const struct bias *bias, float *p, uint32_t first, uint32_t last,
                              uint32_t n, float *out_max, float *out_sum)
{
    v16 max = v_set1(-INFINITY), sum = v_zero(), low = v_set1((float)first),
        high = v_set1((float)last), scale = v_set1(t->scale);
    v16 lane = v_load((const float[16]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    for (uint32_t i = 0; i < n; i += 16) {
        if (part->dtype == DTYPE_I8) /* the queries' scale includes t->scale */
            scale = v_load((const float *)(const void *)part->k_scales[i / KV_TILE]);
        v16 x = v_mul(v_load(p + i), scale);
        if (t->softcap > 0.0f)
            x = v_softcap(x, t->softcap);
        if (bias->slope != 0.0f)
            x = v_fma(v_set1(bias->slope), v_add(lane, v_set1(bias->to_first + (float)i)), x);
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

/* Folds a partition's result into a running result of the same form: P·V, then at `dim` the maximum
 * and the sum. A sum of 0 means that the query attends to no position of the partition. */
static void fold(float *out, const float *part, uint32_t dim)
{
    float *max = out + dim, *sum = out + dim + 1;
    if (part[dim + 1] == 0.0f)
        return;
    if (*sum == 0.0f) { /* the first partition with positions of this query */
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

static inline bool is_finite(const float *x, uint32_t n)
{
    v16 poison = v_zero();
    for (uint32_t i = 0; i < n; i += 16)
        poison = v_fma(v_load(x + i), v_zero(), poison);
    return v_sum(poison) == 0.0f;
}

/* Returns the positions [first, last) of the partition at `base` that a query at `position` attends
 * to. */
static void visible(const struct attention_tile *t, uint32_t position, uint32_t base,
                    uint32_t *out_first, uint32_t *out_last)
{
    uint64_t end = (uint64_t)position + 1;
    uint64_t begin = attention_first(position, t->window, t->chunk);
    *out_last = end <= base ? 0 : end - base < PART ? (uint32_t)(end - base) : PART;
    *out_first = begin <= base ? 0 : begin - base < PART ? (uint32_t)(begin - base) : PART;
}

/* Queries of a tile that are processed per partition at once. */
struct group {
    uint32_t q, n; /* [q, q + n) of the tile's rows × heads */
    uint32_t first[ATTENTION_NQ], last[ATTENTION_NQ];
    uint32_t most;  /* largest last */
    uint32_t whole; /* `most` rounded up to a multiple of KV_TILE */
    float *p[ATTENTION_NQ];
};
