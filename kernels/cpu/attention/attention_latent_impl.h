/* attention_latent_impl.h: a partition of a latent cache, whose vectors of K begin with those of V
 * (kv_layout.h). Rows become tiles of K in vectors of four dwords, once for all queries that an
 * item has. V is read in place; int8 codes of V become tiles too. The values, and so the bits, are
 * those of copy_partition(). Reads 128 vectors of K; writes as much to the scratch. */
#pragma once

#include "kernels/cpu/attention/attention_steps_impl.h"

/* False: copy_partition() is needed. A tile of rows must lie in one block. */
static inline bool is_latent(const struct kv_layer *kv)
{
    return kv->v == NULL && kv->head_dim % KV_TILE == 0 && kv->v_dim % KV_TILE == 0 &&
           kv->block_size % KV_TILE == 0;
}

/* Writes 16 rows of n_dwords (a multiple of 4), `stride` bytes apart, as columns: dword d of row r
 * is number 16·d + r of the tile. */
static inline void turn_keys(const uint8_t *rows, size_t stride, uint32_t n_dwords, uint8_t *tile)
{
    for (uint32_t d = 0; d < n_dwords; d += 4) {
        for (uint32_t r = 0; r < KV_TILE; r += 4) {
            const uint8_t *at = rows + r * stride + (size_t)d * 4;
            float *out = (float *)(void *)tile + (size_t)d * KV_TILE + r;
            __m128 a = _mm_loadu_ps((const float *)(const void *)at),
                   b = _mm_loadu_ps((const float *)(const void *)(at + stride)),
                   c = _mm_loadu_ps((const float *)(const void *)(at + 2 * stride)),
                   e = _mm_loadu_ps((const float *)(const void *)(at + 3 * stride));
            _MM_TRANSPOSE4_PS(a, b, c, e);
            _mm_storeu_ps(out, a);
            _mm_storeu_ps(out + KV_TILE, b);
            _mm_storeu_ps(out + 2 * KV_TILE, c);
            _mm_storeu_ps(out + 3 * KV_TILE, e);
        }
    }
}

static inline __m128i codes_at(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* Writes the codes of V of 16 rows as groups of four positions (kv_value_code()). */
static inline void turn_values(const uint8_t *rows, size_t stride, uint32_t v_dim, uint8_t *tile)
{
    for (uint32_t r = 0; r < KV_TILE; r += 4)
        for (uint32_t d = 0; d < v_dim; d += 16) {
            const uint8_t *at = rows + r * stride + d;
            __m128i *out = (__m128i *)(void *)(tile + (size_t)r * v_dim + (size_t)d * 4);
            __m128i a = codes_at(at), b = codes_at(at + stride), c = codes_at(at + 2 * stride),
                    e = codes_at(at + 3 * stride);
            __m128i low = _mm_unpacklo_epi8(a, b), low2 = _mm_unpacklo_epi8(c, e),
                    high = _mm_unpackhi_epi8(a, b), high2 = _mm_unpackhi_epi8(c, e);
            _mm_storeu_si128(out, _mm_unpacklo_epi16(low, low2));
            _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low, low2));
            _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high, high2));
            _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high, high2));
        }
}

/* The partition at `base`, up to the first n_positions. A tile's rows beyond them are in the block,
 * and have no weight. */
static inline struct partition latent_partition(const struct attention_tile *t,
                                                const struct attention_scratch *s, uint32_t base,
                                                uint32_t n_positions)
{
    const struct kv_layer *kv = t->kv;
    const uint8_t *pool = kv->k;
    bool codes = kv->dtype == DTYPE_I8;
    size_t row = (size_t)kv->head_dim * dtype_block_bytes(kv->dtype);
    uint32_t n = n_positions - base < PART ? n_positions - base : PART;
    struct partition part = {.base = base, .n = n, .dtype = kv->dtype};
    part.v_item = codes ? kv->v_dim : row;
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        size_t item = kv_item_of(kv, t->table, t->i_kv, base + i * KV_TILE);
        const uint8_t *rows = pool + (codes ? kv_codes_at(kv, kv->head_dim, item) : item * row);
        uint8_t *keys = s->k + (size_t)i * KV_TILE * row;
        turn_keys(rows, row, (uint32_t)(row / 4), keys);
        part.k[i] = keys;
        part.v[i] = rows;
        if (!codes)
            continue;
        uint8_t *values = s->v + (size_t)i * KV_TILE * kv->v_dim;
        turn_values(rows, row, kv->v_dim, values);
        part.v[i] = values;
        part.k_scales[i] = part.v_scales[i] = pool + kv_scale_at(kv, kv->head_dim, item);
    }
    return part;
}
