/* attention_amx_impl.h: attention over an int8 cache in AMX tiles (attention_walk_impl.h). A tile
 * product covers 16 queries × 16 positions, or × 16 elements. A wide code is 128·hi + lo
 * (kv_code.h). Both planes of signed bytes are multiplied by the unchanged bytes of the cache (code
 * + 128): T = 128·Σ hi·byte + Σ lo·byte − 128·Σ a. These are the integers of
 * attention_dot_avx512.h, so the bits are the same. Sums: |T| < 2^31 (kv_code.h); intermediate
 * wrap-around cancels.
 *
 * Scores: 16 dwords of a tile of K are the second operand without rearrangement. If head_dim is no
 * multiple of 64, the last operand ends with the tile of K and overlaps the one before. Queries
 * have zeros in the overlap. P·V: V is rearranged once per unit, 64 positions × 16 elements per
 * operand, because positions lie in blocks that need not be adjacent.
 *
 * Cost per partition, 16 queries and head_dim 64: 16 products for scores and 16 for P·V (each of
 * 16·16·64 multiplications; two planes) and 32 loads. Memory: 8 KiB of K and of V, and 16 KiB of
 * rearranged V per unit. The vector units do the rest: they combine 192 vectors of sums, and
 * compute softmax and codes of 128 vectors. The includer has the instructions (tiles_amx.h) and the
 * vectors (vec_avx512.h). */
#pragma once

#define ATTENTION_NQ 16 /* rows of a tile */

#include <stdbool.h>

#include "kernels/cpu/attention/attention_amx.h"
#include "kernels/cpu/attention/attention_dot_avx512.h"
#include "kernels/cpu/attention/attention_latent_impl.h"

_Static_assert(ATTENTION_NQ == TILE_ROWS && ATTENTION_NQ <= ATTENTION_MAX_NQ &&
                   4 * TILE_BYTES <= ATTENTION_PRODUCT_BYTES,
               "queries, their weights and products must fit the scratch");

/* Returns the number of operands of 64 codes for head_dim. */
ALWAYS_INLINE uint32_t amx_chunks(const struct attention_scratch *s)
{
    return (s->dim + TILE_ROW_BYTES - 1) / TILE_ROW_BYTES;
}

/* Converts queries to wide codes, [hi, lo][chunk][64]; t->scale becomes part of their scale. */
static void prepare_queries(const struct attention_tile *t, const struct attention_scratch *s)
{
    uint32_t n = t->kv->head_dim, plane = amx_chunks(s) * TILE_ROW_BYTES, whole = plane - 64,
             zeros = plane - s->dim;
    for (uint32_t q = 0; q < t->n_rows * t->n_heads; q++) {
        const float *row = t->q + q / t->n_heads * t->q_stride;
        uint8_t codes[2 * ATTENTION_MAX_HEAD_DIM];
        struct wide_codes one;
        widen_codes(row + (size_t)(q % t->n_heads) * n, n, s->dim, codes, 0, &one);
        for (uint32_t p = 0; p < 2; p++) {
            uint8_t *to = s->codes + q * s->query_bytes + p * plane;
            memcpy(to, codes + p * s->dim, whole);
            memset(to + whole, 0, zeros);
            memcpy(to + whole + zeros, codes + p * s->dim + whole, TILE_ROW_BYTES - zeros);
        }
        s->q_sums[q] = one.sums[0];
        s->q_scales[q] = one.scales[0] * t->scale;
    }
}

/* Returns the place of rearranged V, as [64 positions][16 elements][16 rows][element][4 positions].
 * The copy of an untiled cache lies before it. */
ALWAYS_INLINE uint8_t *amx_values(const struct attention_scratch *s, uint32_t chunk, uint32_t d)
{
    return s->v + (size_t)2 * PART * s->v_dim + (size_t)chunk * TILE_ROW_BYTES * s->v_dim +
           d / TILE_ROWS * TILE_BYTES;
}

/* Rearranges V. Positions beyond the partition's end keep old contents: their weights are 0. */
static void prepare_partition(const struct attention_tile *t, const struct attention_scratch *s,
                              const struct partition *part)
{
    (void)t;
    for (uint32_t i = 0; i < PART_TILES && part->v[i] != NULL; i++) {
        const uint8_t *v = part->v[i];
        for (uint32_t line = 0; line < s->v_dim / 4; line++, v += 64) {
            uint32_t row = line / (s->v_dim / 16), d = line % (s->v_dim / 16) * 16;
            FETCH(part->next_k[i] + (size_t)line * 64);
            FETCH(part->next_v[i] + (size_t)line * 64);
            _mm512_storeu_si512(amx_values(s, i / 4, d) + (i % 4 * 4 + row) * TILE_ROW_BYTES,
                                _mm512_loadu_si512(v));
        }
    }
}

static struct partition untiled_partition(const struct attention_tile *t,
                                          const struct attention_scratch *s, uint32_t base,
                                          uint32_t n_positions)
{
    return is_latent(t->kv) ? latent_partition(t, s, base, n_positions)
                            : copy_partition(t, s, base, n_positions);
}

/* Tiles 0, 1: hi and lo (4, 5) × first (6); tiles 2, 3: hi and lo × second (7). */
ALWAYS_INLINE void amx_multiply(const uint8_t *hi, const uint8_t *lo, size_t stride,
                                const uint8_t *first, const uint8_t *second)
{
    tile_load(4, hi, stride);
    tile_load(5, lo, stride);
    tile_load(6, first, TILE_ROW_BYTES);
    tile_dot_s8_u8(0, 4, 6);
    tile_dot_s8_u8(1, 5, 6);
    if (second == NULL)
        return;
    tile_load(7, second, TILE_ROW_BYTES);
    tile_dot_s8_u8(2, 4, 7);
    tile_dot_s8_u8(3, 5, 7);
}

ALWAYS_INLINE void amx_begin_products(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

/* The stores are in assembly, so the analyser does not see them. */
/* NOLINTNEXTLINE(readability-non-const-parameter) */
ALWAYS_INLINE void amx_store_products(uint8_t *products)
{
    tile_store(0, products, TILE_ROW_BYTES);
    tile_store(1, products + TILE_BYTES, TILE_ROW_BYTES);
    tile_store(2, products + 2 * TILE_BYTES, TILE_ROW_BYTES);
    tile_store(3, products + 3 * TILE_BYTES, TILE_ROW_BYTES);
}

/* Writes out[16·c + lane] = float(T)·scale of query i, for n_vec pairs of products. */
ALWAYS_INLINE void amx_put(const uint8_t *products, uint32_t i, int32_t sum, float scale,
                           float *out, int n_vec)
{
    __m512i bias = _mm512_set1_epi32(-KV_CODE_BIAS * sum);
    for (int c = 0; c < n_vec; c++) {
        const uint8_t *hi = products + (size_t)2 * c * TILE_BYTES + (size_t)i * TILE_ROW_BYTES;
        __m512i t = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(hi), 7),
                                     _mm512_load_si512(hi + TILE_BYTES));
        t = _mm512_add_epi32(t, bias);
        v_store(out + 16 * c, v_mul(_mm512_cvtepi32_ps(t), v_set1(scale)));
    }
}

static void group_scores(const struct attention_tile *t, const struct attention_scratch *s,
                         const struct partition *part, const struct group *g)
{
    uint32_t n_chunks = amx_chunks(s), last = s->dim - TILE_ROW_BYTES;
    const uint8_t *codes = s->codes + g->q * s->query_bytes;
    (void)t;
    for (uint32_t tile = 0; tile * KV_TILE < g->whole; tile += 2) {
        bool two = (tile + 1) * KV_TILE < g->whole;
        amx_begin_products();
        for (uint32_t c = 0; c < n_chunks; c++) {
            const uint8_t *hi = codes + (size_t)c * TILE_ROW_BYTES;
            size_t at = (size_t)(c * TILE_ROW_BYTES < last ? c * TILE_ROW_BYTES : last) * KV_TILE;
            amx_multiply(hi, hi + (size_t)n_chunks * TILE_ROW_BYTES, s->query_bytes,
                         part->k[tile] + at, two ? part->k[tile + 1] + at : NULL);
        }
        amx_store_products(s->products);
        for (uint32_t i = 0; i < g->n; i++)
            amx_put(s->products, i, s->q_sums[g->q + i], s->q_scales[g->q + i],
                    g->p[i] + (size_t)tile * KV_TILE, two ? 2 : 1);
    }
}

static void group_values(const struct attention_scratch *s, const struct partition *part,
                         const struct group *g, float *const out[])
{
    struct wide_codes a;
    for (uint32_t i = 0; i < g->n; i++) {
        uint8_t *codes = s->weights + (size_t)i * 2 * PART;
        uint32_t n = g->first[i] < g->last[i] ? g->whole : 0;
        weigh_scales(g->p[i], part, n, codes, i, &a);
        memset(codes + n, 0, PART - n);
        memset(codes + PART + n, 0, PART - n);
    }
    for (uint32_t d = 0; d < s->v_dim; d += 32) {
        bool two = d + 16 < s->v_dim;
        amx_begin_products();
        for (uint32_t c = 0; c * TILE_ROW_BYTES < g->most; c++) {
            const uint8_t *hi = s->weights + (size_t)c * TILE_ROW_BYTES, *v = amx_values(s, c, d);
            amx_multiply(hi, hi + PART, (size_t)2 * PART, v, two ? v + TILE_BYTES : NULL);
        }
        amx_store_products(s->products);
        for (uint32_t i = 0; i < g->n; i++)
            amx_put(s->products, i, a.sums[i], a.scales[i], out[i] + d, two ? 2 : 1);
    }
}

/* Nothing to do: codes are finite, and 0 times a code is 0. */
static void mend_values(const struct attention_scratch *s, const struct partition *part,
                        const struct group *g, float *const out[])
{
    (void)s;
    (void)part;
    (void)g;
    (void)out;
}

#include "kernels/cpu/attention/attention_walk_impl.h"

/* Returns true if a KV head of the tile has at least min_queries queries and the cache suits
 * tiles. */
ALWAYS_INLINE bool amx_attention_takes(const struct attention_tile *t, uint32_t min_queries)
{
    uint32_t n_heads = t->n_heads < t->heads_per_kv ? t->n_heads : t->heads_per_kv;
    return t->kv->dtype == DTYPE_I8 && t->n_rows * n_heads >= min_queries &&
           attention_dim(t->kv->head_dim) >= AMX_ATTENTION_MIN_DIM;
}

static void amx_attention(const struct attention_tile *t, void *scratch)
{
    struct attention_scratch s =
        lay_out_scratch(scratch, t->kv, attention_query_bytes(t->kv->head_dim));
    struct tile_config config = tile_config_whole();
    tile_configure(&config);
    walk_units(t, &s);
    tile_release();
}
