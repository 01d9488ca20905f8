/* linear_int_amx_impl.h: the integer linear in AMX tiles, 16 rows of activations × 16 outputs.
 *
 * A scale per block of 32 would cost a tile's store and reload every half tile of K, more than its
 * products. So W itself is multiplied: a panel's W + 2^15 is unpacked once per block of rows into
 * two planes of unsigned bytes, W + 2^15 = w0 + 256·w1, and
 *   T = Σ w0·a + 256·Σ w1·a − 2^15·Σa,   a = lo + 255·hi,
 * each sum over the whole of K in one int32: |Σ| ≤ 255·127·K < 2^31 for K ≤ AMX_MAX_K, whatever the
 * data. K goes by in pieces whose planes stay in L1. Outliers: chunks of 64 columns with many of
 * them in a pair of tiles are multiplied as tiles, the others group by group with vpdpbusd, which
 * the vector units do beside the tiles.
 *
 * Per call: 4·m·n·k tile operations for lo (twice the linear's own), as many for the dense chunks
 * of hi; n·k·(5/8 or 17/16) bytes of weights per block of rows. Bound: the tile unit from about 48
 * rows on, the unpacking below. docs/performance.md, "AMX". */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear_amx.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    CHUNK_K = 64,                  /* columns of one tile */
    PAIR_ROWS = 2 * TILE_ROWS,     /* rows that are multiplied at once */
    PLANES_BYTES = 2 * TILE_BYTES, /* of one chunk: [plane 2][4 columns: 16][output 16][4] */
    /* Groups of four columns with an outlier, of the 512 of a pair's chunk, above which a chunk of
     * hi is a tile: 4 more multiplications (84 cycles) against 3 cycles a group, of which the 84
     * of lo hide about 28 groups. */
    DENSE_GROUPS = 40,
    NOT_DENSE = -1,
    SUMS_BYTES = 4 * TILE_BYTES, /* of a pair: [tile 2][plane 2] */
    /* A piece of K: its planes stay in L1 while all rows of the block go by. */
    PIECE_CHUNKS = 16,
    PIECE_RUNS = PIECE_CHUNKS * CHUNK_K / RUN_K,
};

/* One group of outliers: its four values, where its columns are in the planes of their chunk, and
 * where its row is in the sums of its pair. */
struct amx_group {
    uint16_t in_planes, in_sums;
    int32_t hi;
};

struct amx_pair {
    uint32_t first_dense, n_dense;
    uint32_t next_dense; /* of the panel at hand */
    bool has_outliers;
};

/* A block of rows, its activations as tiles, and the panel that is unpacked. */
struct amx_block {
    const struct linear_job *job;
    uint32_t row_begin, n_rows, n_pairs, n_chunks;
    uint8_t *planes; /* [n_chunks][PLANES_BYTES] */
    int8_t *lo;      /* [tile of rows][n_chunks][16 rows][64] */
    int8_t *hi;      /* [dense chunk][tile 2][16 rows][64] */
    struct amx_group *groups;
    uint32_t *group_ends; /* [pair][n_chunks]: where in groups those of a chunk end */
    int32_t *slots;       /* [n_chunks] of the pair at hand: an index into dense or NOT_DENSE */
    uint32_t *next_group; /* [n_chunks] of the pair at hand */
    uint32_t *dense;      /* chunk of each dense chunk */
    int64_t *bias;        /* [row] −2^15·Σa */
    struct amx_pair *pairs;
    uint32_t n_dense, n_groups;
    uint8_t *sums; /* [pair][lo, hi][tile 2][plane 2][16 rows][16 outputs] */
};

/* Rows of a block, so that its activations stay in the L2 cache. */
ALWAYS_INLINE uint32_t amx_block_rows(uint32_t n_chunks)
{
    uint32_t rows = AMX_BLOCK_BYTES / (n_chunks * CHUNK_K) / PAIR_ROWS * PAIR_ROWS;
    rows = rows > 0 ? rows : PAIR_ROWS;
    return rows < AMX_BLOCK_ROWS ? rows : AMX_BLOCK_ROWS;
}

static void *amx_take(uint8_t **at, size_t n_bytes)
{
    void *taken = *at;
    *at += (n_bytes + 63) / 64 * 64;
    return taken;
}

/* Lays a block's parts into the scratch; AMX_SCRATCH_BYTES is enough (test_linear_amx). */
static size_t amx_lay_out(struct amx_block *b, uint8_t *scratch)
{
    uint8_t *at = scratch;
    uint32_t rows = amx_block_rows(b->n_chunks), pairs = rows / PAIR_ROWS,
             most_dense = pairs * b->n_chunks;
    b->planes = amx_take(&at, (size_t)b->n_chunks * PLANES_BYTES);
    b->lo = amx_take(&at, (size_t)rows * b->n_chunks * CHUNK_K);
    b->hi = amx_take(&at, (size_t)rows * b->n_chunks * CHUNK_K);
    b->groups = amx_take(&at, (size_t)most_dense * DENSE_GROUPS * sizeof(*b->groups));
    b->group_ends = amx_take(&at, most_dense * sizeof(*b->group_ends));
    b->slots = amx_take(&at, b->n_chunks * sizeof(*b->slots));
    b->next_group = amx_take(&at, b->n_chunks * sizeof(*b->next_group));
    b->dense = amx_take(&at, most_dense * sizeof(*b->dense));
    b->bias = amx_take(&at, rows * sizeof(*b->bias));
    b->pairs = amx_take(&at, pairs * sizeof(*b->pairs));
    b->sums = amx_take(&at, (size_t)pairs * 2 * SUMS_BYTES);
    return (size_t)(at - scratch);
}

/* One row of lo into its tiles; Σlo. Padding is zero. */
static int32_t amx_copy_lo(const struct amx_block *b, uint32_t i_row)
{
    const struct act_cpu *act = b->job->act;
    const int8_t *lo = act_lo(act, b->row_begin + i_row);
    int8_t *dst = b->lo + (size_t)(i_row / TILE_ROWS) * b->n_chunks * TILE_BYTES +
                  i_row % TILE_ROWS * TILE_ROW_BYTES;
    __m512i sum = _mm512_setzero_si512(), ones = _mm512_set1_epi8(1);
    for (uint32_t c = 0; c < b->n_chunks; c++, dst += TILE_BYTES) {
        uint32_t left = act->k_pad - c * CHUNK_K;
        __mmask16 mask = left >= CHUNK_K ? 0xFFFF : (__mmask16)((1u << left / 4) - 1);
        __m512i four = _mm512_maskz_loadu_epi32(mask, lo + (size_t)c * CHUNK_K);
        _mm512_store_si512(dst, four);
        sum = _mm512_dpbusd_epi32(sum, ones, four);
    }
    return _mm512_reduce_add_epi32(sum);
}

ALWAYS_INLINE int32_t sum_of_four(int32_t hi)
{
    return (int8_t)hi + (int8_t)(hi >> 8) + (int8_t)(hi >> 16) + (hi >> 24);
}

/* Which chunks of a pair are dense, with zeroed tiles for them, and where the groups of the others
 * will be. */
static void amx_choose_dense(struct amx_block *b, uint32_t i_pair, uint32_t n_rows)
{
    const struct act_cpu *act = b->job->act;
    uint32_t *counts = b->next_group, *ends = b->group_ends + (size_t)i_pair * b->n_chunks;
    memset(counts, 0, b->n_chunks * sizeof(*counts));
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t row = b->row_begin + i_pair * PAIR_ROWS + r;
        const struct act_outlier *o = act_outliers(act, row);
        for (uint32_t i = 0; i < act->n_outliers[row]; i++)
            counts[o[i].group * ACT_GROUP / CHUNK_K]++;
    }
    struct amx_pair pair = {.first_dense = b->n_dense};
    uint32_t first_group = b->n_groups;
    for (uint32_t c = 0; c < b->n_chunks; c++) {
        bool is_dense = counts[c] > DENSE_GROUPS;
        uint32_t n_groups = is_dense ? 0 : counts[c];
        b->slots[c] = is_dense ? (int32_t)b->n_dense : NOT_DENSE;
        b->next_group[c] = b->n_groups;
        b->n_groups += n_groups;
        ends[c] = b->n_groups;
        if (is_dense) {
            b->dense[b->n_dense] = c;
            memset(b->hi + (size_t)b->n_dense * 2 * TILE_BYTES, 0, (size_t)2 * TILE_BYTES);
            b->n_dense++;
        }
    }
    pair.n_dense = b->n_dense - pair.first_dense;
    pair.has_outliers = pair.n_dense > 0 || b->n_groups > first_group;
    b->pairs[i_pair] = pair;
}

/* Outliers of one row into the dense tiles or the groups of their chunk; Σhi. */
static int32_t amx_place_outliers(struct amx_block *b, uint32_t i_row)
{
    const struct act_cpu *act = b->job->act;
    uint32_t row = b->row_begin + i_row, in_pair = i_row % PAIR_ROWS;
    const struct act_outlier *o = act_outliers(act, row);
    int32_t sum = 0;
    for (uint32_t i = 0; i < act->n_outliers[row]; i++) {
        uint32_t chunk = o[i].group * ACT_GROUP / CHUNK_K,
                 in_chunk = o[i].group % (CHUNK_K / ACT_GROUP);
        int32_t slot = b->slots[chunk];
        sum += sum_of_four(o[i].hi);
        if (slot == NOT_DENSE)
            b->groups[b->next_group[chunk]++] = (struct amx_group){
                .in_planes = (uint16_t)(in_chunk * TILE_ROW_BYTES),
                .in_sums = (uint16_t)(in_pair / TILE_ROWS * 2 * TILE_BYTES +
                                      in_pair % TILE_ROWS * TILE_ROW_BYTES),
                .hi = o[i].hi,
            };
        else
            memcpy(b->hi + (size_t)slot * 2 * TILE_BYTES + in_pair * TILE_ROW_BYTES +
                       in_chunk * ACT_GROUP,
                   &o[i].hi, sizeof(o[i].hi));
    }
    return sum;
}

/* The activations of a block as tiles and lists. */
static void amx_take_rows(struct amx_block *b)
{
    b->n_pairs = (b->n_rows + PAIR_ROWS - 1) / PAIR_ROWS;
    b->n_dense = b->n_groups = 0;
    for (uint32_t p = 0; p < b->n_pairs; p++) {
        uint32_t first = p * PAIR_ROWS, left = b->n_rows - first,
                 n = left < PAIR_ROWS ? left : PAIR_ROWS,
                 n_padded = (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        amx_choose_dense(b, p, n);
        for (uint32_t r = first; r < first + n; r++) {
            int64_t lo = amx_copy_lo(b, r), hi = amx_place_outliers(b, r);
            b->bias[r] = -32768 * (lo + 255 * hi);
        }
        for (uint32_t r = first + n; r < first + n_padded; r++)
            for (uint32_t c = 0; c < b->n_chunks; c++)
                memset(b->lo + ((size_t)(r / TILE_ROWS) * b->n_chunks + c) * TILE_BYTES +
                           r % TILE_ROWS * TILE_ROW_BYTES,
                       0, TILE_ROW_BYTES);
    }
}

/* Four columns × 16 outputs of codes: (code·scale + start) mod 2^16 into the two planes. */
ALWAYS_INLINE void amx_put_planes(uint8_t *dst, __m512i codes, __m512i scale, __m512i start)
{
    const __m512i low = _mm512_set1_epi16(0xFF);
    __m512i even = _mm512_mullo_epi16(_mm512_and_si512(codes, low), scale),
            odd = _mm512_mullo_epi16(_mm512_srli_epi16(codes, 8), scale);
    even = _mm512_add_epi16(even, start);
    odd = _mm512_add_epi16(odd, start);
    /* low ? even : odd */
    __m512i w0 = _mm512_ternarylogic_epi32(low, even, _mm512_slli_epi16(odd, 8), 0xCA),
            w1 = _mm512_ternarylogic_epi32(low, _mm512_srli_epi16(even, 8), odd, 0xCA);
    _mm512_store_si512(dst, w0);
    _mm512_store_si512(dst + TILE_BYTES, w1);
}

/* First group of columns of a run in the planes. */
ALWAYS_INLINE uint8_t *amx_planes_of_run(uint8_t *planes, uint32_t run)
{
    return planes + (size_t)(run / 2) * PLANES_BYTES + run % 2 * (TILE_BYTES / 2);
}

/* Runs [run, end) of a panel. */
static void amx_unpack_int4(const uint8_t *panel, uint8_t *planes, uint32_t run, uint32_t end)
{
    const __m512i nibble = _mm512_set1_epi8(15), low = _mm512_set1_epi32(0xFFFF);
    for (; run < end; run++) {
        const uint8_t *from = panel + (size_t)run * INT4_RUN_BYTES;
        __m512i pair = _mm512_load_si512(from + 256); /* isw, ioff */
        __m512i isw = _mm512_ternarylogic_epi32(low, pair, _mm512_slli_epi32(pair, 16), 0xCA),
                ioff = _mm512_ternarylogic_epi32(low, _mm512_srli_epi32(pair, 16), pair, 0xCA);
        /* W = q·isw + (ioff − 8·isw) */
        __m512i start = _mm512_sub_epi16(ioff, _mm512_slli_epi16(isw, 3));
        start = _mm512_xor_si512(start, _mm512_set1_epi16((short)0x8000));
        uint8_t *dst = amx_planes_of_run(planes, run);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            __m512i codes = _mm512_load_si512(from + v * 64);
            amx_put_planes(dst + v * 64, _mm512_and_si512(codes, nibble), isw, start);
            codes = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
            amx_put_planes(dst + (4 + v) * 64, codes, isw, start);
        }
    }
}

static void amx_unpack_int8(const uint8_t *panel, const int16_t *scales, uint8_t *planes,
                            uint32_t run, uint32_t end)
{
    for (; run < end; run++) {
        const uint8_t *from = panel + (size_t)run * INT8_RUN_BYTES;
        __m512i isw = _mm512_cvtepu16_epi32(
            _mm256_load_si256((const __m256i *)(const void *)(scales + (size_t)run * PANEL_ROWS)));
        isw = _mm512_or_si512(isw, _mm512_slli_epi32(isw, 16));
        /* W = (q + 128)·isw − 128·isw */
        __m512i start =
            _mm512_sub_epi16(_mm512_set1_epi16((short)0x8000), _mm512_slli_epi16(isw, 7));
        uint8_t *dst = amx_planes_of_run(planes, run);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++)
            amx_put_planes(dst + v * 64, _mm512_load_si512(from + v * 64), isw, start);
    }
}

/* Tiles 0, 1 (and 2, 3: the second 16 rows) += a chunk of activations × both planes. */
ALWAYS_INLINE void amx_multiply_chunk(const int8_t *a, size_t second, const uint8_t *planes,
                                      bool two)
{
    tile_load(4, a, TILE_ROW_BYTES);
    tile_load(6, planes, TILE_ROW_BYTES);
    tile_load(7, planes + TILE_BYTES, TILE_ROW_BYTES);
    if (two)
        tile_load(5, a + second, TILE_ROW_BYTES);
    tile_dot_s8_u8(0, 4, 6);
    tile_dot_s8_u8(1, 4, 7);
    if (two) {
        tile_dot_s8_u8(2, 5, 6);
        tile_dot_s8_u8(3, 5, 7);
    }
}

ALWAYS_INLINE void amx_load_sums(const uint8_t *sums, bool fresh, bool two)
{
    if (fresh) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
        return;
    }
    tile_load(0, sums, TILE_ROW_BYTES);
    tile_load(1, sums + TILE_BYTES, TILE_ROW_BYTES);
    if (two) {
        tile_load(2, sums + 2 * TILE_BYTES, TILE_ROW_BYTES);
        tile_load(3, sums + 3 * TILE_BYTES, TILE_ROW_BYTES);
    }
}

ALWAYS_INLINE void amx_store_sums(uint8_t *sums, bool two)
{
    tile_store(0, sums, TILE_ROW_BYTES);
    tile_store(1, sums + TILE_BYTES, TILE_ROW_BYTES);
    if (two) {
        tile_store(2, sums + 2 * TILE_BYTES, TILE_ROW_BYTES);
        tile_store(3, sums + 3 * TILE_BYTES, TILE_ROW_BYTES);
    }
}

/* The groups of outliers of one chunk, added to the sums in memory. */
ALWAYS_INLINE void amx_add_groups(const struct amx_group *g, const struct amx_group *end,
                                  const uint8_t *planes, uint8_t *sums)
{
    for (; g < end; g++) {
        uint8_t *at = sums + g->in_sums;
        const uint8_t *w = planes + g->in_planes;
        __m512i hi = _mm512_set1_epi32(g->hi);
        __m512i s0 = _mm512_dpbusd_epi32(_mm512_load_si512(at), _mm512_load_si512(w), hi),
                s1 = _mm512_dpbusd_epi32(_mm512_load_si512(at + TILE_BYTES),
                                         _mm512_load_si512(w + TILE_BYTES), hi);
        _mm512_store_si512(at, s0);
        _mm512_store_si512(at + TILE_BYTES, s1);
    }
}

/* Chunks [chunk, end) of K of a pair of row tiles with the panel that is unpacked. The vector units
 * work on a chunk's groups while the tile unit has its products. */
ALWAYS_INLINE void amx_multiply_pair(struct amx_block *b, uint32_t i_pair, uint32_t chunk,
                                     uint32_t end, bool two)
{
    size_t tile_of_rows = (size_t)b->n_chunks * TILE_BYTES;
    const int8_t *lo = b->lo + 2 * i_pair * tile_of_rows;
    uint8_t *sums = b->sums + (size_t)i_pair * 2 * SUMS_BYTES, *hi_sums = sums + SUMS_BYTES;
    struct amx_pair *pair = &b->pairs[i_pair];
    const uint32_t *ends = b->group_ends + (size_t)i_pair * b->n_chunks;
    uint32_t first = i_pair == 0 && chunk == 0 ? 0 : ends[(ptrdiff_t)chunk - 1];
    const struct amx_group *group = b->groups + first;
    if (chunk == 0) {
        pair->next_dense = pair->first_dense;
        if (pair->has_outliers)
            memset(hi_sums, 0, two ? SUMS_BYTES : SUMS_BYTES / 2);
    }
    amx_load_sums(sums, chunk == 0, two);
    for (uint32_t c = chunk; c < end; c++) {
        const uint8_t *planes = b->planes + (size_t)c * PLANES_BYTES;
        const struct amx_group *group_end = b->groups + ends[c];
        amx_multiply_chunk(lo + (size_t)c * TILE_BYTES, tile_of_rows, planes, two);
        amx_add_groups(group, group_end, planes, hi_sums);
        group = group_end;
    }
    amx_store_sums(sums, two);
    uint32_t i = pair->next_dense, dense_end = pair->first_dense + pair->n_dense;
    if (i == dense_end || b->dense[i] >= end)
        return;
    amx_load_sums(hi_sums, false, two);
    for (; i < dense_end && b->dense[i] < end; i++)
        amx_multiply_chunk(b->hi + (size_t)i * 2 * TILE_BYTES, TILE_BYTES,
                           b->planes + (size_t)b->dense[i] * PLANES_BYTES, two);
    amx_store_sums(hi_sums, two);
    pair->next_dense = i;
}

/* The four sums of a row: lo and hi by both planes. */
struct amx_sums {
    __m512i lo[2], hi[2]; /* by plane */
};

ALWAYS_INLINE struct amx_sums amx_sums_of_row(const struct amx_block *b, uint32_t i_row)
{
    uint32_t in_pair = i_row % PAIR_ROWS;
    const uint8_t *at = b->sums + (size_t)(i_row / PAIR_ROWS) * 2 * SUMS_BYTES +
                        (size_t)(in_pair / TILE_ROWS) * 2 * TILE_BYTES +
                        (size_t)(in_pair % TILE_ROWS) * TILE_ROW_BYTES,
                  *hi = at + SUMS_BYTES;
    struct amx_sums s = {.lo = {_mm512_load_si512(at), _mm512_load_si512(at + TILE_BYTES)}};
    s.hi[0] = s.hi[1] = _mm512_setzero_si512();
    if (b->pairs[i_row / PAIR_ROWS].has_outliers) {
        s.hi[0] = _mm512_load_si512(hi);
        s.hi[1] = _mm512_load_si512(hi + TILE_BYTES);
    }
    return s;
}

ALWAYS_INLINE __mmask16 amx_output_mask(const struct linear_job *job, uint32_t n)
{
    uint32_t left = job->w->base.n_rows - n;
    return (__mmask16)(left >= PANEL_ROWS ? 0xFFFF : (1u << left) - 1);
}

ALWAYS_INLINE void amx_put_floats(const struct linear_job *job, uint32_t row, uint32_t n,
                                  __m512 total)
{
    __m512 unit = _mm512_loadu_ps(weight_units(job->w) + n),
           scale = _mm512_mul_ps(unit, _mm512_set1_ps(job->act->scale[row]));
    _mm512_mask_storeu_ps(job->y + row * job->y_stride + n, amx_output_mask(job, n),
                          _mm512_mul_ps(total, scale));
}

/* T fits 32 bits, so it may be put together modulo 2^32. */
ALWAYS_INLINE void amx_finish_int4(const struct amx_block *b, uint32_t i_row, uint32_t n)
{
    struct amx_sums s = amx_sums_of_row(b, i_row);
    uint32_t row = b->row_begin + i_row;
    __m512i lo = _mm512_add_epi32(s.lo[0], _mm512_slli_epi32(s.lo[1], 8)),
            hi = _mm512_add_epi32(s.hi[0], _mm512_slli_epi32(s.hi[1], 8));
    lo = _mm512_add_epi32(lo, _mm512_set1_epi32((int32_t)(uint64_t)b->bias[i_row]));
    __m512i total = _mm512_add_epi32(lo, _mm512_sub_epi32(_mm512_slli_epi32(hi, 8), hi));
    if (b->job->y != NULL)
        amx_put_floats(b->job, row, n, _mm512_cvtepi32_ps(total));
    else
        _mm512_mask_storeu_epi32(b->job->sums + row * b->job->sums_stride + n,
                                 amx_output_mask(b->job, n), total);
}

ALWAYS_INLINE __m512i amx_half(__m512i x, int half)
{
    return _mm512_cvtepi32_epi64(half == 0 ? _mm512_castsi512_si256(x)
                                           : _mm512_extracti32x8_epi32(x, 1));
}

/* T of 8 of the 16 outputs, in 64 bits. */
ALWAYS_INLINE __m512i amx_total_int8(const struct amx_sums *s, int half, int64_t bias)
{
    __m512i lo = _mm512_add_epi64(amx_half(s->lo[0], half),
                                  _mm512_slli_epi64(amx_half(s->lo[1], half), 8)),
            hi = _mm512_add_epi64(amx_half(s->hi[0], half),
                                  _mm512_slli_epi64(amx_half(s->hi[1], half), 8));
    lo = _mm512_add_epi64(lo, _mm512_set1_epi64(bias));
    return _mm512_add_epi64(lo, _mm512_sub_epi64(_mm512_slli_epi64(hi, 8), hi));
}

ALWAYS_INLINE __m512i amx_join(__m256i first, __m256i second)
{
    return _mm512_inserti32x8(_mm512_castsi256_si512(first), second, 1);
}

ALWAYS_INLINE void amx_finish_int8(const struct amx_block *b, uint32_t i_row, uint32_t n)
{
    struct amx_sums s = amx_sums_of_row(b, i_row);
    const struct linear_job *job = b->job;
    uint32_t row = b->row_begin + i_row;
    __m512i first = amx_total_int8(&s, 0, b->bias[i_row]),
            second = amx_total_int8(&s, 1, b->bias[i_row]);
    if (job->y != NULL) {
        amx_put_floats(job, row, n,
                       _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(first)),
                                          _mm512_cvtepi64_ps(second), 1));
        return;
    }
    __mmask16 mask = amx_output_mask(job, n);
    __m512i low = amx_join(_mm512_cvtepi64_epi32(first), _mm512_cvtepi64_epi32(second)),
            high = amx_join(_mm512_cvtepi64_epi32(_mm512_srai_epi64(first, 16)),
                            _mm512_cvtepi64_epi32(_mm512_srai_epi64(second, 16)));
    _mm512_mask_storeu_epi32(job->sums + row * job->sums_stride + n, mask,
                             _mm512_and_si512(low, _mm512_set1_epi32(0xFFFF)));
    _mm512_mask_storeu_epi32(job->high + row * job->y_stride + n, mask, high);
}

/* All rows of the block × one panel. */
static void amx_run_panel(struct amx_block *b, uint32_t n)
{
    const struct weight_cpu *w = b->job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS);
    bool is_int8 = w->format == PACK_INT8;
    uint32_t n_runs = w->k_pad / RUN_K;
    for (uint32_t run = 0; run < n_runs; run += PIECE_RUNS) {
        uint32_t end = n_runs - run < PIECE_RUNS ? n_runs : run + PIECE_RUNS;
        uint32_t chunk = run / 2, chunk_end = (end + 1) / 2;
        if (is_int8)
            amx_unpack_int8(panel, panel_scales(w, panel), b->planes, run, end);
        else
            amx_unpack_int4(panel, b->planes, run, end);
        for (uint32_t p = 0; p < b->n_pairs; p++)
            if (b->n_rows - p * PAIR_ROWS > TILE_ROWS)
                amx_multiply_pair(b, p, chunk, chunk_end, true);
            else
                amx_multiply_pair(b, p, chunk, chunk_end, false);
    }
    if (is_int8)
        for (uint32_t r = 0; r < b->n_rows; r++)
            amx_finish_int8(b, r, n);
    else
        for (uint32_t r = 0; r < b->n_rows; r++)
            amx_finish_int4(b, r, n);
}

ALWAYS_INLINE bool amx_takes(const struct weight_cpu *w)
{
    return (w->format == PACK_INT4 || w->format == PACK_INT8) && w->k_pad > 0 &&
           w->k_pad <= AMX_MAX_K;
}

/* A share with a weight that amx_takes(). */
static void amx_linear_int(const struct linear_job *job, const struct linear_share *share)
{
    struct amx_block b = {.job = job, .n_chunks = (job->w->k_pad + CHUNK_K - 1) / CHUNK_K};
    struct tile_config config = tile_config_whole();
    amx_lay_out(&b, share->scratch);
    tile_configure(&config);
    uint32_t step = amx_block_rows(b.n_chunks);
    for (b.row_begin = share->row_begin; b.row_begin < share->row_end; b.row_begin += step) {
        uint32_t left = share->row_end - b.row_begin;
        b.n_rows = left < step ? left : step;
        amx_take_rows(&b);
        for (uint32_t n = share->n_begin; n < share->n_end; n += PANEL_ROWS)
            amx_run_panel(&b, n);
    }
    tile_release();
}
