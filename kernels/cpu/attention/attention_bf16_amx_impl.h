/* attention_bf16_amx_impl.h: attention over a bf16 cache with the sums of AMX tiles
 * (attention_walk_impl.h). Queries and weights are rounded to bf16 (nearest, ties to even). Values
 * nearer to 0 than DENSE_TINY become 0, as in the cache (kv_store). So no product or sum is
 * subnormal, and TDPBF16PS and FMAs give the same bits (dense.h).
 *
 * A score, or an element of P·V, is summed in runs of 32 elements (positions) from the first of the
 * head (partition). Each run has a chain of FMAs from 0 over the even elements and a chain over the
 * odd elements. Their sum is added to the total, which starts at 0. If head_dim is no multiple of
 * 32, the last run ends with the head and overlaps the run before. Queries have zeros in the
 * overlap.
 *
 * With tiles_min_queries() queries or more: tiles, 16 queries × 16 positions, or × 16 elements.
 * With fewer: FMAs. Scores: a run of a tile of K is an operand without rearrangement (kv_layout.h).
 * P·V: V is rearranged once per unit, pairs of positions side by side; missing positions are 0.
 * Cost per partition, 16 queries and head_dim 64: 16 products for scores and 16 for P·V, 40 loads,
 * and 128 permutations per unit; 16 KiB of K and of V.
 *
 * The includer has the instructions (tiles_amx.h), the vectors (vec_avx512.h) and
 *
 *     tiles_min_queries()   queries of a group from which tiles are used; UINT32_MAX: never */
#pragma once

#define ATTENTION_NQ 16 /* rows of a tile */

#include <stdbool.h>

#include "kernels/cpu/attention/attention_amx.h"
#include "kernels/cpu/attention/attention_dot_avx512.h"
#include "kernels/cpu/attention/attention_latent_impl.h"
#include "kernels/cpu/attention/attention_steps_impl.h"
#include "kernels/cpu/dense.h"

enum {
    RUN = 32, /* elements in a row of an operand */
    SHARED_TILES = 4,
    FMA_NQ = 2,
};

_Static_assert(ATTENTION_NQ == TILE_ROWS && ATTENTION_NQ <= ATTENTION_MAX_NQ &&
                   SHARED_TILES * TILE_BYTES <= ATTENTION_PRODUCT_BYTES &&
                   RUN * sizeof(uint16_t) == TILE_ROW_BYTES &&
                   RUN == (int)AMX_ATTENTION_MIN_BF16_DIM && PART % RUN == 0,
               "queries, their weights and products must fit the scratch");

/* --- operands --- */

static inline v16 flushed(v16 x)
{
    return v_select_lt(v_abs(x), v_set1(DENSE_TINY), v_zero(), x);
}

ALWAYS_INLINE uint32_t n_runs(const struct attention_scratch *s)
{
    return (s->dim + RUN - 1) / RUN;
}

/* Returns the first element of run r. */
ALWAYS_INLINE uint32_t run_at(const struct attention_scratch *s, uint32_t r)
{
    return r * RUN + RUN <= s->dim ? r * RUN : s->dim - RUN;
}

/* Rounds queries to [run][32], with zeros beyond head_dim. */
static void prepare_queries(const struct attention_tile *t, const struct attention_scratch *s)
{
    uint32_t n = t->kv->head_dim, last = n_runs(s) - 1, zeros = last * RUN - run_at(s, last);
    for (uint32_t q = 0; q < t->n_rows * t->n_heads; q++) {
        const float *x = t->q + q / t->n_heads * t->q_stride + (size_t)(q % t->n_heads) * n;
        uint16_t *to = (uint16_t *)(void *)(s->codes + q * s->query_bytes);
        for (uint32_t d = 0; d < s->dim; d += 16) {
            v16 v = n - d >= 16 ? v_load(x + d) : v_load_n(x + d, n - d);
            v_store_bf16(to + d + (d < last * RUN ? 0 : zeros), flushed(v));
        }
        memset(to + (size_t)last * RUN, 0, zeros * sizeof(*to));
    }
}

/* Returns the place of rearranged V, as [32 positions][16 elements][16 pairs][element][2]. The copy
 * of an untiled cache lies before it. */
ALWAYS_INLINE uint8_t *arranged_values(const struct attention_scratch *s, uint32_t run, uint32_t d)
{
    return s->v + (size_t)PART * s->v_dim * sizeof(uint16_t) +
           ((size_t)run * (s->v_dim / 16) + d / 16) * TILE_BYTES;
}

/* Interleaves 16 elements of two positions, pair by pair. */
ALWAYS_INLINE __m512i beside(const uint8_t *even, const uint8_t *odd)
{
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)even)),
            high =
                odd == NULL
                    ? _mm512_setzero_si512()
                    : _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)odd));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

static void arrange_pair(const struct attention_scratch *s, const struct partition *part,
                         uint32_t j)
{
    uint8_t *to = arranged_values(s, j / RUN, 0) + (size_t)(j % RUN / 2) * TILE_ROW_BYTES;
    if (j >= part->n) {
        for (uint32_t d = 0; d < s->v_dim; d += 16, to += TILE_BYTES)
            _mm512_storeu_si512(to, _mm512_setzero_si512());
        return;
    }
    const uint8_t *even = part->v[j / KV_TILE] + j % KV_TILE * part->v_item,
                  *odd = even + part->v_item;
    for (uint32_t d = 0; d < s->v_dim; d += 16, to += TILE_BYTES)
        _mm512_storeu_si512(
            to, beside(even + (size_t)d * 2, j + 1 < part->n ? odd + (size_t)d * 2 : NULL));
}

/* Rearranges a tile of V and prefetches the next. */
static void arrange_tile(const struct attention_scratch *s, const struct partition *part,
                         uint32_t tile)
{
    uint32_t first = tile * KV_TILE;
    for (uint32_t j = first; j < first + KV_TILE; j += 2) {
        size_t at = (size_t)(j - first) * s->v_dim * 2;
        for (size_t line = at; line < at + (size_t)s->v_dim * 4 && first < part->n; line += 64) {
            FETCH(part->next_k[tile] + line);
            FETCH(part->next_v[tile] + line);
        }
        arrange_pair(s, part, j);
    }
}

static void prepare_partition(const struct attention_tile *t, const struct attention_scratch *s,
                              const struct partition *part)
{
    if (t->n_rows * t->n_heads < tiles_min_queries())
        return;
    for (uint32_t tile = 0; tile * KV_TILE < (part->n + RUN - 1) / RUN * RUN; tile++)
        arrange_tile(s, part, tile);
}

/* Copies a partition of an untiled cache to tiles of bf16. */
static struct partition untiled_partition(const struct attention_tile *t,
                                          const struct attention_scratch *s, uint32_t base,
                                          uint32_t n_positions)
{
    const struct kv_layer *kv = t->kv;
    if (is_latent(kv))
        return latent_partition(t, s, base, n_positions);
    uint32_t n = n_positions - base < PART ? n_positions - base : PART;
    struct partition part = {.base = base, .n = n, .dtype = DTYPE_BF16};
    uint32_t v_stride;
    const uint16_t *values = kv_values_of(kv, &v_stride);
    part.v_item = s->v_dim * sizeof(uint16_t);
    for (uint32_t i = 0; i < n; i++) {
        size_t item = kv_item_of(kv, t->table, t->i_kv, base + i);
        const uint16_t *k = (const uint16_t *)kv->k + item * kv->head_dim,
                       *v = values + item * v_stride;
        uint16_t *tile = (uint16_t *)(void *)s->k + (size_t)(i - i % KV_TILE) * s->dim,
                 *row = (uint16_t *)(void *)s->v + (size_t)i * s->v_dim;
        for (uint32_t d = 0; d < s->dim; d++)
            tile[(d / 2 * KV_TILE + i % KV_TILE) * 2 + d % 2] = d < kv->head_dim ? k[d] : 0;
        for (uint32_t d = 0; d < s->v_dim; d++)
            row[d] = d < kv->v_dim ? v[d] : 0;
    }
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        part.k[i] = s->k + i * KV_TILE * s->dim * sizeof(uint16_t);
        part.v[i] = s->v + i * KV_TILE * part.v_item;
    }
    return part;
}

/* Rounds the weights of one query; 0 beyond n. */
static void round_weights(const struct attention_scratch *s, uint32_t i, const float *p, uint32_t n)
{
    uint16_t *to = (uint16_t *)(void *)(s->weights + (size_t)i * 2 * PART);
    for (uint32_t j = 0; j < n; j += 16)
        v_store_bf16(to + j, flushed(v_load(p + j)));
    memset(to + n, 0, (PART - n) * sizeof(*to));
}

/* --- with tiles --- */

/* Adds a × b[i] to tile register i, for i = 0 … n − 1. Register 4 holds a; registers 5, 6, 7 and
 * again 5 hold the operands b[i]. */
ALWAYS_INLINE void multiply_tiles(const uint8_t *a, size_t stride, const uint8_t *const b[],
                                  uint32_t n)
{
    tile_load(4, a, stride);
    tile_load(5, b[0], TILE_ROW_BYTES);
    tile_dot_bf16(0, 4, 5);
    if (n > 1) {
        tile_load(6, b[1], TILE_ROW_BYTES);
        tile_dot_bf16(1, 4, 6);
    }
    if (n > 2) {
        tile_load(7, b[2], TILE_ROW_BYTES);
        tile_dot_bf16(2, 4, 7);
    }
    if (n > 3) {
        tile_load(5, b[3], TILE_ROW_BYTES);
        tile_dot_bf16(3, 4, 5);
    }
}

ALWAYS_INLINE void begin_tiles(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

/* The stores are in assembly, so the analyser does not see them. */
/* NOLINTNEXTLINE(readability-non-const-parameter) */
ALWAYS_INLINE void store_tiles(uint8_t *to, size_t next, size_t stride, uint32_t n)
{
    tile_store(0, to, stride);
    if (n > 1)
        tile_store(1, to + next, stride);
    if (n > 2)
        tile_store(2, to + 2 * next, stride);
    if (n > 3)
        tile_store(3, to + 3 * next, stride);
}

/* Rows of the scratch beyond the group's queries receive scores that no code reads. */
static void tile_scores(const struct attention_scratch *s, const struct partition *part,
                        const struct group *g)
{
    const uint8_t *queries = s->codes + g->q * s->query_bytes, *k[SHARED_TILES];
    for (uint32_t tile = 0; tile * KV_TILE < g->whole; tile += SHARED_TILES) {
        uint32_t left = g->whole / KV_TILE - tile, n = left < SHARED_TILES ? left : SHARED_TILES;
        begin_tiles();
        for (uint32_t r = 0; r < n_runs(s); r++) {
            for (uint32_t i = 0; i < n; i++)
                k[i] = part->k[tile + i] + (size_t)run_at(s, r) * KV_TILE * sizeof(uint16_t);
            multiply_tiles(queries + (size_t)r * TILE_ROW_BYTES, s->query_bytes, k, n);
        }
        store_tiles((uint8_t *)(s->p + (size_t)tile * KV_TILE), KV_TILE * sizeof(float),
                    PART * sizeof(float), n);
    }
}

static void tile_values(const struct attention_scratch *s, const struct group *g,
                        float *const out[])
{
    const uint8_t *v[SHARED_TILES];
    for (uint32_t d = 0; d < s->v_dim; d += SHARED_TILES * 16) {
        uint32_t left = (s->v_dim - d) / 16, n = left < SHARED_TILES ? left : SHARED_TILES;
        begin_tiles();
        for (uint32_t r = 0; r * RUN < g->most; r++) {
            for (uint32_t i = 0; i < n; i++)
                v[i] = arranged_values(s, r, d + i * 16);
            multiply_tiles(s->weights + (size_t)r * TILE_ROW_BYTES, (size_t)2 * PART, v, n);
        }
        store_tiles(s->products, TILE_BYTES, TILE_ROW_BYTES, n);
        for (uint32_t q = 0; q < g->n; q++)
            for (uint32_t i = 0; i < n; i++)
                v_store(out[q] + d + i * 16,
                        v_load((const float *)(const void *)(s->products + (size_t)i * TILE_BYTES +
                                                             (size_t)q * TILE_ROW_BYTES)));
    }
}

/* --- with FMAs --- */

/* Broadcasts each element of a pair to all lanes. */
ALWAYS_INLINE void split_pair(const uint8_t *pair, v16 *out_even, v16 *out_odd)
{
    float both;
    memcpy(&both, pair, sizeof(both));
    v_split_bf16(v_set1(both), out_even, out_odd);
}

/* Computes the scores of nq queries against SHARED_TILES tiles of K. Scratch has whole fours of
 * tiles per partition. */
ALWAYS_INLINE void fma_score_tiles(const struct attention_scratch *s, const uint8_t *const q[],
                                   const uint8_t *const k[], const uint8_t *const next[],
                                   float *const out[], int nq)
{
    v16 total[FMA_NQ][SHARED_TILES];
    for (int i = 0; i < nq; i++)
        for (int c = 0; c < SHARED_TILES; c++)
            total[i][c] = v_zero();
    for (uint32_t r = 0; r < n_runs(s); r++) {
        v16 even[FMA_NQ][SHARED_TILES], odd[FMA_NQ][SHARED_TILES];
        size_t at = (size_t)run_at(s, r) * KV_TILE * sizeof(uint16_t);
        for (int i = 0; i < nq; i++)
            for (int c = 0; c < SHARED_TILES; c++)
                even[i][c] = odd[i][c] = v_zero();
        for (uint32_t pair = 0; pair < RUN / 2; pair++, at += TILE_ROW_BYTES) {
            v16 a[FMA_NQ], b[FMA_NQ];
#pragma GCC unroll 2
            for (int i = 0; i < nq; i++)
                split_pair(q[i] + (size_t)r * TILE_ROW_BYTES + pair * 4, &a[i], &b[i]);
#pragma GCC unroll 4
            for (int c = 0; c < SHARED_TILES; c++) {
                v16 low, high;
                v_split_bf16(v_load((const float *)(const void *)(k[c] + at)), &low, &high);
                FETCH(next[c] + at);
#pragma GCC unroll 2
                for (int i = 0; i < nq; i++) {
                    even[i][c] = v_fma(a[i], low, even[i][c]);
                    odd[i][c] = v_fma(b[i], high, odd[i][c]);
                }
            }
        }
        for (int i = 0; i < nq; i++)
            for (int c = 0; c < SHARED_TILES; c++)
                total[i][c] = v_add(total[i][c], v_add(even[i][c], odd[i][c]));
    }
    for (int i = 0; i < nq; i++)
        for (int c = 0; c < SHARED_TILES; c++)
            v_store(out[i] + (size_t)c * KV_TILE, total[i][c]);
}

ALWAYS_INLINE void fma_scores(const struct attention_scratch *s, const struct partition *part,
                              const struct group *g, uint32_t first, int nq)
{
    const uint8_t *q[FMA_NQ], *k[SHARED_TILES], *next[SHARED_TILES];
    float *out[FMA_NQ];
    for (int i = 0; i < nq; i++)
        q[i] = s->codes + (g->q + first + (uint32_t)i) * s->query_bytes;
    for (uint32_t tile = 0; tile * KV_TILE < g->whole; tile += SHARED_TILES) {
        for (uint32_t c = 0; c < SHARED_TILES; c++) { /* no code reads the scores beyond `whole` */
            uint32_t at = (tile + c) * KV_TILE < g->whole ? tile + c : tile;
            k[c] = part->k[at];
            next[c] = part->v[at];
        }
        for (int i = 0; i < nq; i++)
            out[i] = g->p[first + (uint32_t)i] + (size_t)tile * KV_TILE;
        fma_score_tiles(s, q, k, next, out, nq);
    }
}

ALWAYS_INLINE v16 value_at(const struct partition *part, uint32_t j, uint32_t d)
{
    return v_load_bf16(
        (const uint16_t *)(const void *)(part->v[j / KV_TILE] + j % KV_TILE * part->v_item) + d);
}

ALWAYS_INLINE void add_value(const struct partition *part, const uint16_t *weights, uint32_t j,
                             uint32_t d, v16 chain[], int n_vec)
{
    v16 p = v_set1(dtype_bf16_to_f32(weights[j]));
    FETCH(part->next_k[j / KV_TILE] + j % KV_TILE * part->v_item + (size_t)d * 2);
#pragma GCC unroll 4
    for (int c = 0; c < n_vec; c++)
        chain[c] = v_fma(p, value_at(part, j, d + 16 * (uint32_t)c), chain[c]);
}

/* out[d, d + 16·n_vec) of one query, over the positions [first, last) that it attends to. */
ALWAYS_INLINE void fma_vectors(const struct partition *part, const uint16_t *weights,
                               uint32_t first, uint32_t last, uint32_t d, float *out, int n_vec)
{
    v16 total[SHARED_TILES];
    for (int c = 0; c < n_vec; c++)
        total[c] = v_zero();
    for (uint32_t run = first / RUN * RUN; run < last; run += RUN) {
        v16 even[SHARED_TILES], odd[SHARED_TILES];
        uint32_t end = last - run < RUN ? last : run + RUN;
        for (int c = 0; c < n_vec; c++)
            even[c] = odd[c] = v_zero();
        for (uint32_t j = run < first ? first & ~1u : run; j < end; j += 2) {
            if (j >= first)
                add_value(part, weights, j, d, even, n_vec);
            if (j + 1 < end)
                add_value(part, weights, j + 1, d, odd, n_vec);
        }
        for (int c = 0; c < n_vec; c++)
            total[c] = v_add(total[c], v_add(even[c], odd[c]));
    }
    for (int c = 0; c < n_vec; c++)
        v_store(out + 16 * c, total[c]);
}

/* Values outside [first, last) are not multiplied at all, not even by 0. */
static void fma_values(const struct attention_scratch *s, const struct partition *part, uint32_t i,
                       uint32_t first, uint32_t last, float *out)
{
    const uint16_t *weights = (const uint16_t *)(const void *)(s->weights + (size_t)i * 2 * PART);
    uint32_t d = 0;
    for (; d + SHARED_TILES * 16 <= s->v_dim; d += SHARED_TILES * 16)
        fma_vectors(part, weights, first, last, d, out + d, SHARED_TILES);
    for (; d < s->v_dim; d += 16)
        fma_vectors(part, weights, first, last, d, out + d, 1);
}

/* --- per group --- */

static void group_scores(const struct attention_tile *t, const struct attention_scratch *s,
                         const struct partition *part, const struct group *g)
{
    (void)t;
    if (g->n >= tiles_min_queries()) {
        tile_scores(s, part, g);
        return;
    }
    uint32_t q = 0;
    for (; q + FMA_NQ <= g->n; q += FMA_NQ)
        fma_scores(s, part, g, q, FMA_NQ);
    if (q < g->n)
        fma_scores(s, part, g, q, 1);
}

static void group_values(const struct attention_scratch *s, const struct partition *part,
                         const struct group *g, float *const out[])
{
    for (uint32_t i = 0; i < g->n; i++)
        round_weights(s, i, g->p[i], g->first[i] < g->last[i] ? g->whole : 0);
    if (g->n >= tiles_min_queries()) {
        tile_values(s, g, out);
        return;
    }
    for (uint32_t i = 0; i < g->n; i++)
        fma_values(s, part, i, g->first[i], g->last[i], out[i]);
}

/* Repairs the effect of 0 · infinity in a tile. */
static void mend_values(const struct attention_scratch *s, const struct partition *part,
                        const struct group *g, float *const out[])
{
    for (uint32_t i = 0; i < g->n && g->n >= tiles_min_queries(); i++)
        if (g->first[i] < g->last[i] && !is_finite(out[i], s->v_dim))
            fma_values(s, part, i, g->first[i], g->last[i], out[i]);
}

#include "kernels/cpu/attention/attention_walk_impl.h"

/* For any number of queries, because the cache's type fixes the order of sums. */
ALWAYS_INLINE bool bf16_attention_takes(const struct attention_tile *t)
{
    return t->kv->dtype == DTYPE_BF16 &&
           attention_dim(t->kv->head_dim) >= AMX_ATTENTION_MIN_BF16_DIM;
}

static void bf16_attention(const struct attention_tile *t, void *scratch)
{
    struct attention_scratch s =
        lay_out_scratch(scratch, t->kv, attention_query_bytes(t->kv->head_dim));
    struct tile_config config = tile_config_whole();
    bool tiles = tiles_min_queries() != UINT32_MAX;
    if (tiles)
        tile_configure(&config);
    walk_units(t, &s);
    if (tiles)
        tile_release();
}
