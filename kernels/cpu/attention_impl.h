/* attention_impl.h: attention of a tile of query rows of one sequence against one KV head, in
 * 16-lane vectors. Partition by partition of 128 positions: scores (a chain of FMAs over head_dim
 * per position, 16 positions to a vector), softmax within the partition, P·V (a chain over
 * positions per element), and the partition is folded into the running result in index order. What
 * a query computes depends on its own position only. K and V are read from the cache as it lies
 * (kv_layout.h), widened on the way; shapes that have no 16-position tiles are first copied to such
 * tiles of f32. Operations per query and partition: 4·128·head_dim; bytes: 2·128·head_dim elements
 * per six queries, from L2 after the first. Sources: arXiv 2205.14135 (online softmax), 2309.06180
 * (paged KV). */
#pragma once

#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/vector_impl.h"

enum { PART = ATTENTION_PARTITION, N_TILES = PART / KV_TILE };

struct attention_scratch {
    float *k, *v;     /* [N_TILES][dim][KV_TILE] and [N_TILES][KV_TILE][dim]: copied tiles */
    float *p;         /* [MAX_Q][PART] scores, then weights */
    float *out;       /* [MAX_Q][dim] running P·V */
    float *part;      /* [MAX_Q][dim] P·V of this partition */
    float *max, *sum; /* [MAX_Q] running */
    float *part_max, *part_sum;
    uint32_t dim; /* head_dim padded to 16 */
};

/* The tiles of one partition. */
struct partition {
    const uint8_t *k[N_TILES], *v[N_TILES];
    enum dtype dtype;
    uint32_t base;
    size_t v_item; /* bytes from one position's V to the next */
};

/* scratch_bytes_cpu() has the size. */
static struct attention_scratch lay_out_scratch(float *at, uint32_t head_dim)
{
    struct attention_scratch s = {.dim = (head_dim + 15) & ~15u};
    s.k = at;
    s.v = s.k + (size_t)s.dim * PART;
    s.p = s.v + (size_t)s.dim * PART;
    s.out = s.p + (size_t)ATTENTION_MAX_Q * PART;
    s.part = s.out + (size_t)ATTENTION_MAX_Q * s.dim;
    s.max = s.part + (size_t)ATTENTION_MAX_Q * s.dim;
    s.sum = s.max + ATTENTION_MAX_Q;
    s.part_max = s.sum + ATTENTION_MAX_Q;
    s.part_sum = s.part_max + ATTENTION_MAX_Q;
    return s;
}

/* Copies n positions of an untiled cache to f32 tiles; V beyond head_dim is 0. */
static void copy_partition(const struct attention_tile *t, const struct attention_scratch *s,
                           uint32_t base, uint32_t n)
{
    const struct kv_layer *kv = t->kv;
    size_t bytes = dtype_block_bytes(kv->dtype);
    float item[ATTENTION_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < n; i++) {
        size_t place = kv_item_of(kv, t->table, t->i_kv, base + i) * kv->head_dim * bytes;
        float *k = s->k + (size_t)(i / KV_TILE * KV_TILE) * s->dim + i % KV_TILE,
              *v = s->v + (size_t)i * s->dim;
        dtype_to_f32(kv->dtype, (const uint8_t *)kv->k + place, kv->head_dim, item);
        for (uint32_t d = 0; d < kv->head_dim; d++)
            k[(size_t)d * KV_TILE] = item[d];
        dtype_to_f32(kv->dtype, (const uint8_t *)kv->v + place, kv->head_dim, v);
        for (uint32_t d = kv->head_dim; d < s->dim; d++)
            v[d] = 0.0f;
    }
}

/* Where the first n positions of a partition are. */
static struct partition find_partition(const struct attention_tile *t,
                                       const struct attention_scratch *s, uint32_t base, uint32_t n)
{
    const struct kv_layer *kv = t->kv;
    struct partition part = {.base = base, .dtype = kv->dtype};
    bool tiled = kv_is_tiled(kv);
    part.v_item = (size_t)kv->head_dim * dtype_block_bytes(kv->dtype);
    if (!tiled) {
        copy_partition(t, s, base, n);
        part.dtype = DTYPE_F32;
        part.v_item = s->dim * sizeof(float);
    }
    for (uint32_t i = 0; i * KV_TILE < n; i++) {
        size_t tile = (size_t)i * KV_TILE * part.v_item;
        if (tiled)
            tile = kv_item_of(kv, t->table, t->i_kv, base + i * KV_TILE) * part.v_item;
        part.k[i] = (tiled ? (const uint8_t *)kv->k : (const uint8_t *)s->k) + tile;
        part.v[i] = (tiled ? (const uint8_t *)kv->v : (const uint8_t *)s->v) + tile;
    }
    return part;
}

/* Scores of nq queries against n_tiles tiles: out[q][16·c + lane] = Σ_d q[d]·K[position][d]. */
ALWAYS_INLINE void score_tiles(const float *const q[], const uint8_t *const k[], uint32_t head_dim,
                               enum dtype type, float *const out[], int nq, int n_tiles)
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
            v16 dwords = v_load((const float *)(const void *)k[c] +
                                (size_t)d / (type == DTYPE_F32 ? 1 : 2) * KV_TILE);
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
        const uint8_t *v = part->v[tile] + offset;
        uint32_t end = n - tile * KV_TILE < KV_TILE ? n : (tile + 1) * KV_TILE;
        for (uint32_t j = tile * KV_TILE; j < end; j++, v += part->v_item) {
            v16 vj[ATTENTION_NV];
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

/* All scores, or all of P·V, of nq queries: widths in runs of ATTENTION_NV vectors, then singly. */
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
            score_tiles(q, part->k + tile, head_dim, type, at, nq, ATTENTION_NV);
        else
            score_tiles(q, part->k + tile, head_dim, type, at, nq, 1);
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

/* softcap·tanh(x / softcap) = softcap·(1 − 2 / (1 + exp(2x / softcap))) */
static inline v16 v_softcap(v16 x, float cap)
{
    v16 e = v_exp(v_mul(x, v_set1(2.0f / cap))), one = v_set1(1.0f);
    return v_mul(v_set1(cap), v_sub(one, v_div(v_set1(2.0f), v_add(one, e))));
}

/* Scores p[0, n) of one query become weights; those outside [first, last) weigh exactly 0. n is a
 * multiple of 16. */
static void softmax_partition(const struct attention_tile *t, float *p, uint32_t first,
                              uint32_t last, uint32_t n, float *out_max, float *out_sum)
{
    v16 max = v_set1(-INFINITY), sum = v_zero(), low = v_set1((float)first),
        high = v_set1((float)last);
    v16 lane = v_load((const float[16]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    for (uint32_t i = 0; i < n; i += 16) {
        v16 x = v_mul(v_load(p + i), v_set1(t->scale));
        if (t->softcap > 0.0f)
            x = v_softcap(x, t->softcap);
        v16 at = v_add(lane, v_set1((float)i));
        x = v_select_lt(at, low, v_set1(-INFINITY), x);
        x = v_select_lt(at, high, x, v_set1(-INFINITY));
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

static float exp1(float x)
{
    float lanes[16];
    v_store(lanes, v_exp(v_set1(x)));
    return lanes[0];
}

/* Folds the partition of query q into its running result. */
static void fold(const struct attention_scratch *s, uint32_t q)
{
    float *out = s->out + (size_t)q * s->dim, *part = s->part + (size_t)q * s->dim;
    if (s->sum[q] == 0.0f) { /* the first partition that this query sees */
        s->max[q] = s->part_max[q];
        s->sum[q] = s->part_sum[q];
        memcpy(out, part, s->dim * sizeof(float));
        return;
    }
    float max = s->max[q] > s->part_max[q] ? s->max[q] : s->part_max[q];
    float keep = exp1(s->max[q] - max), take = exp1(s->part_max[q] - max);
    s->sum[q] = s->sum[q] * keep + s->part_sum[q] * take;
    s->max[q] = max;
    for (uint32_t d = 0; d < s->dim; d += 16)
        v_store(out + d,
                v_add(v_mul(v_load(out + d), v_set1(keep)), v_mul(v_load(part + d), v_set1(take))));
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

/* Queries [q, q + nq) of the tile against a partition. */
static void attend(const struct attention_tile *t, const struct attention_scratch *s,
                   const struct partition *part, uint32_t q, uint32_t nq)
{
    const float *a[ATTENTION_NQ];
    float *out[ATTENTION_NQ];
    uint32_t first[ATTENTION_NQ], last[ATTENTION_NQ], most = 0;
    for (uint32_t i = 0; i < nq; i++) {
        uint32_t row = (q + i) / t->n_heads, head = (q + i) % t->n_heads;
        a[i] = t->q + row * t->q_stride + (size_t)head * t->kv->head_dim;
        out[i] = s->p + (size_t)(q + i) * PART;
        visible(t, t->positions[row], part->base, &first[i], &last[i]);
        most = last[i] > most ? last[i] : most;
    }
    uint32_t whole = (most + KV_TILE - 1) / KV_TILE * KV_TILE, n = t->kv->head_dim;
    if (part->dtype == DTYPE_F32)
        scores_f32(a, part, n, whole, out, nq);
    else if (part->dtype == DTYPE_F16)
        scores_f16(a, part, n, whole, out, nq);
    else
        scores_bf16(a, part, n, whole, out, nq);
    for (uint32_t i = 0; i < nq; i++) {
        if (first[i] < last[i])
            softmax_partition(t, out[i], first[i], last[i], whole, &s->part_max[q + i],
                              &s->part_sum[q + i]);
        a[i] = out[i];
        out[i] = s->part + (size_t)(q + i) * s->dim;
    }
    if (part->dtype == DTYPE_F32)
        values_f32(a, part, s->dim, most, out, nq);
    else if (part->dtype == DTYPE_F16)
        values_f16(a, part, s->dim, most, out, nq);
    else
        values_bf16(a, part, s->dim, most, out, nq);
    for (uint32_t i = 0; i < nq; i++)
        if (first[i] < last[i])
            fold(s, q + i);
}

static void attention(const struct attention_tile *t, void *scratch)
{
    struct attention_scratch s = lay_out_scratch(scratch, t->kv->head_dim);
    uint32_t n_q = t->n_rows * t->n_heads, longest = t->positions[t->n_rows - 1] + 1;
    uint32_t begin = 0, n = t->kv->head_dim;
    if (t->window > 0 && t->positions[0] + 1 > t->window)
        begin = (t->positions[0] + 1 - t->window) / PART * PART;
    memset(s.sum, 0, n_q * sizeof(float));
    for (uint32_t base = begin; base < longest; base += PART) {
        struct partition part =
            find_partition(t, &s, base, longest - base < PART ? longest - base : PART);
        uint32_t q = 0; /* rows ascend: those before the partition come first */
        while (t->positions[q / t->n_heads] < base)
            q += t->n_heads;
        for (; q < n_q; q += ATTENTION_NQ)
            attend(t, &s, &part, q, n_q - q < ATTENTION_NQ ? n_q - q : ATTENTION_NQ);
    }
    for (uint32_t q = 0; q < n_q; q++) {
        const float *out = s.out + (size_t)q * s.dim;
        float *y = t->y + q / t->n_heads * t->y_stride + (size_t)(q % t->n_heads) * n;
        float scale = 1.0f / s.sum[q];
        for (uint32_t d = 0; d + 16 <= n; d += 16)
            v_store(y + d, v_mul(v_load(out + d), v_set1(scale)));
        for (uint32_t d = n & ~15u; d < n; d++)
            y[d] = out[d] * scale;
    }
}
