/* attention_float_impl.h: scores and P·V of one partition of an f32, f16 or bf16 cache, in chains
 * of FMAs. Scores: a chain over head_dim per position, 16 positions to a vector. P·V: a chain over
 * positions per element. K and V are read without rearrangement (kv_layout.h) and widened; all
 * queries of a tile share the loads. */
#pragma once

#include "kernels/cpu/attention/attention_part.h"
#include "kernels/cpu/vec/vector_impl.h"

/* Scores of nq queries against n_tiles tiles: out[q][16·c + lane] = Σ_d q[d]·K[position][d]. The
 * tiles at `next` are prefetched. */
ALWAYS_INLINE void score_tiles(const float *const q[], const uint8_t *const k[],
                               const uint8_t *const next[], uint32_t head_dim, enum dtype type,
                               float *const out[], int nq, int n_tiles)
{
    v16 acc[ATTENTION_NQ][ATTENTION_NV];
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 16
        for (int c = 0; c < n_tiles; c++)
            acc[i][c] = v_zero();
    for (uint32_t d = 0; d < head_dim; d += type == DTYPE_F32 ? 1 : 2) {
        v16 low[ATTENTION_NV], high[ATTENTION_NV];
#pragma GCC unroll 16
        for (int c = 0; c < n_tiles; c++) {
            size_t at = (size_t)d / (type == DTYPE_F32 ? 1 : 2) * KV_TILE * sizeof(float);
            v16 dwords = v_load((const float *)(const void *)(k[c] + at));
            FETCH(next[c] + at);
            if (type == DTYPE_F32)
                low[c] = dwords;
            else if (type == DTYPE_F16)
                v_split_f16(dwords, &low[c], &high[c]);
            else
                v_split_bf16(dwords, &low[c], &high[c]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < nq; i++) {
            v16 qd = v_set1(q[i][d]);
#pragma GCC unroll 16
            for (int c = 0; c < n_tiles; c++)
                acc[i][c] = v_fma(qd, low[c], acc[i][c]);
        }
        if (type == DTYPE_F32)
            continue;
#pragma GCC unroll 16
        for (int i = 0; i < nq; i++) {
            v16 qd = v_set1(q[i][d + 1]);
#pragma GCC unroll 16
            for (int c = 0; c < n_tiles; c++)
                acc[i][c] = v_fma(qd, high[c], acc[i][c]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 16
        for (int c = 0; c < n_tiles; c++)
            v_store(out[i] + KV_TILE * c, acc[i][c]);
}

ALWAYS_INLINE v16 load_v(const uint8_t *at, enum dtype type)
{
    if (type == DTYPE_F32)
        return v_load((const float *)(const void *)at);
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return type == DTYPE_F16 ? v_load_f16(halves) : v_load_bf16(halves);
}

/* out[q][16·c + lane] = Σ_j p[q][j]·V[j][element], j < n, for n_vec vectors of elements from byte
 * `offset` of each V. */
ALWAYS_INLINE void weigh_values(const float *const p[], const struct partition *part, uint32_t n,
                                size_t offset, enum dtype type, float *const out[], int nq,
                                int n_vec)
{
    v16 acc[ATTENTION_NQ][ATTENTION_NV];
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 16
        for (int c = 0; c < n_vec; c++)
            acc[i][c] = v_zero();
    for (uint32_t tile = 0; tile * KV_TILE < n; tile++) {
        const uint8_t *v = part->v[tile] + offset, *next = part->next_k[tile] + offset;
        uint32_t end = n - tile * KV_TILE < KV_TILE ? n : (tile + 1) * KV_TILE;
        for (uint32_t j = tile * KV_TILE; j < end; j++, v += part->v_item, next += part->v_item) {
            v16 vj[ATTENTION_NV];
#pragma GCC unroll 16
            for (int c = 0; c < n_vec; c += type == DTYPE_F32 ? 1 : 2)
                FETCH(next + (size_t)c * 16 * (type == DTYPE_F32 ? 4 : 2));
#pragma GCC unroll 16
            for (int c = 0; c < n_vec; c++)
                vj[c] = load_v(v + (size_t)c * 16 * (type == DTYPE_F32 ? 4 : 2), type);
#pragma GCC unroll 16
            for (int i = 0; i < nq; i++) {
                v16 pj = v_set1(p[i][j]);
#pragma GCC unroll 16
                for (int c = 0; c < n_vec; c++)
                    acc[i][c] = v_fma(pj, vj[c], acc[i][c]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 16
        for (int c = 0; c < n_vec; c++)
            v_store(out[i] + 16 * c, acc[i][c]);
}

/* All scores, or all of P·V, of nq queries: in groups of ATTENTION_NV vectors, then single
 * vectors. */
ALWAYS_INLINE void scores_as(const float *const q[], const struct partition *part,
                             uint32_t head_dim, uint32_t n, enum dtype type, float *const p[],
                             int nq)
{
    for (uint32_t tile = 0; tile * KV_TILE < n;) {
        float *at[ATTENTION_NQ];
        bool many = (tile + ATTENTION_NV) * KV_TILE <= n;
        for (int i = 0; i < nq; i++)
            at[i] = p[i] + (size_t)tile * KV_TILE;
        if (many)
            score_tiles(q, part->k + tile, part->v + tile, head_dim, type, at, nq, ATTENTION_NV);
        else
            score_tiles(q, part->k + tile, part->v + tile, head_dim, type, at, nq, 1);
        tile += many ? ATTENTION_NV : 1;
    }
}

ALWAYS_INLINE void values_as(const float *const p[], const struct partition *part, uint32_t dim,
                             uint32_t n, enum dtype type, float *const out[], int nq)
{
    for (uint32_t d = 0; d < dim;) {
        float *at[ATTENTION_NQ];
        bool many = d + 16 * ATTENTION_NV <= dim;
        size_t offset = (size_t)d * (type == DTYPE_F32 ? 4 : 2);
        for (int i = 0; i < nq; i++)
            at[i] = out[i] + d;
        if (many)
            weigh_values(p, part, n, offset, type, at, nq, ATTENTION_NV);
        else
            weigh_values(p, part, n, offset, type, at, nq, 1);
        d += many ? 16 * ATTENTION_NV : 16;
    }
}

#define SPECIALISE(name, call)                                                                     \
    static void name(const float *const a[], const struct partition *part, uint32_t dim,           \
                     uint32_t n, float *const out[], uint32_t nq)                                  \
    {                                                                                              \
        uint32_t i = 0;                                                                            \
        for (; i + ATTENTION_NQ <= nq; i += ATTENTION_NQ)                                          \
            call(a + i, part, dim, n, TYPE, out + i, ATTENTION_NQ);                                \
        for (; i + 3 <= nq; i += 3)                                                                \
            call(a + i, part, dim, n, TYPE, out + i, 3);                                           \
        for (; i + 2 <= nq; i += 2)                                                                \
            call(a + i, part, dim, n, TYPE, out + i, 2);                                           \
        for (; i < nq; i++)                                                                        \
            call(a + i, part, dim, n, TYPE, out + i, 1);                                           \
    }
#define TYPE DTYPE_F32
SPECIALISE(scores_f32, scores_as)
SPECIALISE(values_f32, values_as)
#undef TYPE
#define TYPE DTYPE_F16
SPECIALISE(scores_f16, scores_as)
SPECIALISE(values_f16, values_as)
#undef TYPE
#define TYPE DTYPE_BF16
SPECIALISE(scores_bf16, scores_as)
SPECIALISE(values_bf16, values_as)
#undef TYPE
