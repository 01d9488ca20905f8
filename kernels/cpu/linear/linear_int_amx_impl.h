/* linear_int_amx_impl.h: the integer linear in AMX tiles, 16 rows of activations × 16 outputs.
 *
 * With a scale per block of 32, a tile would be stored and reloaded every half tile of K. That
 * costs more than its products. So W itself is multiplied. A panel's V = W + 2^bias is unpacked,
 * once per block of rows, into planes of unsigned bytes (linear_int_amx_planes.h). Then T =
 * Σ_planes 2^(its place)·Σ w·a − 2^bias·Σa,   a = lo + 255·hi, where each sum over the whole of K
 * fits one int32 for any data: |Σ| ≤ 255·127·K < 2^31 for K ≤ AMX_MAX_K. Forms Q4 and Q8 have two
 * planes, form S three or four. Form S computes two parts in turn, each of one or two planes, in
 * the same tiles and the same memory. K is computed in pieces whose planes stay in L1. Outliers: a
 * chunk of 64 columns with many outliers in a pair of tiles is multiplied as tiles. Other outliers
 * are multiplied group by group with vpdpbusd, in the vector units beside the tiles.
 *
 * Per call and plane: 2·m·n·k operations of tiles for lo, as many as the linear has. The dense
 * chunks of hi take as many. Per block of rows: n·k packed weights (4.5 to 8.5 bits each; once per
 * part) and n·k bytes per plane. Per part and panel: m·k bytes of activations from L2. That is 2
 * KiB for 4 products or, in a part of one plane, for 2, which matches the rate of L2. Bound: the
 * tile unit from about 48 rows on, the unpacking below. docs/log/2026-11-22-amx-counted.md. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_amx.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/linear/linear_int_amx_planes.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    PAIR_ROWS = 2 * TILE_ROWS, /* rows per multiplication */
    /* With more groups of outliers than this, of the 512 in a pair's chunk, a chunk of hi becomes a
     * tile. A tile takes 4 more multiplications (84 cycles); a group takes 3 cycles. The 84 cycles
     * of lo hide about 28 groups. */
    DENSE_GROUPS = 40,
    FIRST_DENSE = 1 << 30,       /* marks the index of a dense chunk */
    SUMS_BYTES = 4 * TILE_BYTES, /* per pair: [tile 2][plane 2] */
    /* A piece of K: its planes stay in L1 while all rows of the block are multiplied. */
    PIECE_CHUNKS = 16,
    PIECE_RUNS = PIECE_CHUNKS * CHUNK_K / RUN_K,
};

/* A group of outliers with its four values. The field in_planes is the place of its columns in the
 * chunk's planes. The field in_sums is the place of its row in the pair's sums. */
struct amx_group {
    uint16_t in_planes, in_sums;
    int32_t hi;
};

/* Activations of 32 rows, arranged once for all linears that read them (`tiles` in act_cpu.h). */
struct amx_pair {
    int8_t *lo;               /* [tile 2][n_chunks][16 rows][64] */
    int8_t *hi;               /* [dense chunk][tile 2][16 rows][64] */
    struct amx_group *groups; /* ordered by chunk */
    uint32_t *group_ends;     /* [n_chunks]: end of each chunk in `groups` */
    uint32_t *dense;          /* [n_chunks]: the dense chunks, ascending */
    int64_t *bias;            /* [32 rows] −2^15·Σa */
    uint32_t *counts;         /* [2]: number of dense chunks, of groups */
};

/* The rows of a share, at most a block, and the unpacked panel. */
struct amx_block {
    const struct linear_job *job;
    uint32_t row_begin, row_end;  /* only these rows are stored */
    uint32_t first_pair, n_pairs; /* pairs that contain these rows */
    uint32_t n_chunks;
    uint32_t max_pairs;
    uint8_t *planes;      /* [n_chunks][PLANES_BYTES], of the current part */
    uint32_t *next_dense; /* [part][pair], of the current panel */
    uint8_t *sums;        /* [part][pair][lo, hi][tile 2][plane 2][16 rows][16 outputs] */
};

/* Returns the rows of a block, so that its activations stay in the L2 cache. */
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

/* Places a block's arrays in the scratch; AMX_SCRATCH_BYTES is enough (test_linear_amx). */
static size_t amx_lay_out(struct amx_block *b, uint8_t *scratch)
{
    uint8_t *at = scratch;
    b->max_pairs = amx_block_rows(b->n_chunks) / PAIR_ROWS +
                   1; /* + 1, because a share may begin and end inside pairs */
    uint32_t n = AMX_MAX_PARTS * b->max_pairs;
    b->planes = amx_take(&at, (size_t)b->n_chunks * PLANES_BYTES);
    b->next_dense = amx_take(&at, n * sizeof(*b->next_dense));
    b->sums = amx_take(&at, (size_t)n * 2 * SUMS_BYTES);
    return (size_t)(at - scratch);
}

/* Places a pair's arrays; their size is act_tiles_bytes(). */
static size_t amx_lay_out_pair(struct amx_pair *pair, uint32_t n_chunks, uint8_t *memory)
{
    uint8_t *at = memory;
    pair->lo = amx_take(&at, (size_t)n_chunks * 2 * TILE_BYTES);
    pair->hi = amx_take(&at, (size_t)n_chunks * 2 * TILE_BYTES);
    pair->groups = amx_take(&at, (size_t)n_chunks * DENSE_GROUPS * sizeof(*pair->groups));
    pair->group_ends = amx_take(&at, n_chunks * sizeof(*pair->group_ends));
    pair->dense = amx_take(&at, n_chunks * sizeof(*pair->dense));
    pair->bias = amx_take(&at, PAIR_ROWS * sizeof(*pair->bias));
    pair->counts = amx_take(&at, 2 * sizeof(*pair->counts));
    return (size_t)(at - memory);
}

ALWAYS_INLINE struct amx_pair amx_pair_of(const struct act_cpu *act, uint32_t i_pair)
{
    uint32_t n_chunks = (act->k_pad + CHUNK_K - 1) / CHUNK_K;
    struct amx_pair pair;
    amx_lay_out_pair(&pair, n_chunks, act->tiles + i_pair * act_tiles_bytes(PAIR_ROWS, act->k_pad));
    return pair;
}

/* Copies one row of lo into its tiles and returns Σlo. Padding is zero. */
static int32_t amx_copy_lo(const struct act_cpu *act, uint32_t row, const struct amx_pair *pair)
{
    uint32_t n_chunks = (act->k_pad + CHUNK_K - 1) / CHUNK_K, in_pair = row % PAIR_ROWS;
    const int8_t *lo = act_lo(act, row);
    int8_t *dst = pair->lo + (size_t)(in_pair / TILE_ROWS) * n_chunks * TILE_BYTES +
                  (size_t)(in_pair % TILE_ROWS) * TILE_ROW_BYTES;
    __m512i sum = _mm512_setzero_si512(), ones = _mm512_set1_epi8(1);
    for (uint32_t c = 0; c < n_chunks; c++, dst += TILE_BYTES) {
        uint32_t left = act->k_pad - c * CHUNK_K;
        __mmask16 mask = (__mmask16)(left >= CHUNK_K ? 0xFFFF : (1u << left / 4) - 1);
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

/* Decides which chunks of rows [first, end) are dense, and zeroes tiles for them. Counts the groups
 * of the other chunks. group_ends[c] becomes the beginning of chunk c's groups, or FIRST_DENSE + i
 * for the i-th dense chunk. */
static void amx_choose_dense(const struct act_cpu *act, uint32_t first, uint32_t end,
                             uint32_t n_chunks, struct amx_pair *pair)
{
    uint32_t *counts = pair->group_ends, n_groups = 0, n_dense = 0;
    memset(counts, 0, n_chunks * sizeof(*counts));
    for (uint32_t row = first; row < end; row++) {
        const struct act_outlier *o = act_outliers(act, row);
        for (uint32_t i = 0; i < act->n_outliers[row]; i++)
            counts[o[i].group * ACT_GROUP / CHUNK_K]++;
    }
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint32_t count = counts[c];
        if (count <= DENSE_GROUPS) {
            counts[c] = n_groups;
            n_groups += count;
            continue;
        }
        counts[c] = FIRST_DENSE + n_dense;
        memset(pair->hi + (size_t)n_dense * 2 * TILE_BYTES, 0, (size_t)2 * TILE_BYTES);
        pair->dense[n_dense++] = c;
    }
    pair->counts[0] = n_dense;
    pair->counts[1] = n_groups;
}

/* Puts the outliers of one row into the dense tiles or the groups of their chunk; returns Σhi. */
static int32_t amx_place_outliers(const struct act_cpu *act, uint32_t row, struct amx_pair *pair)
{
    uint32_t in_pair = row % PAIR_ROWS;
    const struct act_outlier *o = act_outliers(act, row);
    int32_t sum = 0;
    for (uint32_t i = 0; i < act->n_outliers[row]; i++) {
        uint32_t chunk = o[i].group * ACT_GROUP / CHUNK_K,
                 in_chunk = o[i].group % (CHUNK_K / ACT_GROUP), slot = pair->group_ends[chunk];
        sum += sum_of_four(o[i].hi);
        if (slot >= FIRST_DENSE) {
            memcpy(pair->hi + (size_t)(slot - FIRST_DENSE) * 2 * TILE_BYTES +
                       in_pair * TILE_ROW_BYTES + in_chunk * ACT_GROUP,
                   &o[i].hi, sizeof(o[i].hi));
            continue;
        }
        pair->groups[slot] = (struct amx_group){
            .in_planes = (uint16_t)(in_chunk * TILE_ROW_BYTES),
            .in_sums = (uint16_t)(in_pair / TILE_ROWS * 2 * TILE_BYTES +
                                  in_pair % TILE_ROWS * TILE_ROW_BYTES),
            .hi = o[i].hi,
        };
        pair->group_ends[chunk]++;
    }
    return sum;
}

/* Arranges the rows of a pair as tiles and lists. Tile rows after the last row are not cleared,
 * because their results are not stored. */
static void amx_arrange_pair(const struct act_cpu *act, uint32_t i_pair)
{
    struct amx_pair pair = amx_pair_of(act, i_pair);
    uint32_t n_chunks = (act->k_pad + CHUNK_K - 1) / CHUNK_K, first = i_pair * PAIR_ROWS,
             left = act->base.n_rows - first, end = first + (left < PAIR_ROWS ? left : PAIR_ROWS);
    amx_choose_dense(act, first, end, n_chunks, &pair);
    for (uint32_t row = first; row < end; row++) {
        int64_t lo = amx_copy_lo(act, row, &pair), hi = amx_place_outliers(act, row, &pair);
        pair.bias[row - first] = -32768 * (lo + 255 * hi);
    }
    uint32_t ends = 0;
    for (uint32_t c = 0; c < n_chunks; c++) { /* a dense chunk has no groups */
        if (pair.group_ends[c] < FIRST_DENSE)
            ends = pair.group_ends[c];
        pair.group_ends[c] = ends;
    }
}

/* Tiles 0, 1 (and 2, 3: the second 16 rows) += a chunk of activations × its planes. A single plane
 * goes into tiles 0 and 2. */
ALWAYS_INLINE void amx_multiply_chunk(const int8_t *a, size_t second, const uint8_t *planes,
                                      unsigned n_planes, bool two)
{
    tile_load(4, a, TILE_ROW_BYTES);
    tile_load(6, planes, TILE_ROW_BYTES);
    if (n_planes == 2)
        tile_load(7, planes + TILE_BYTES, TILE_ROW_BYTES);
    if (two)
        tile_load(5, a + second, TILE_ROW_BYTES);
    tile_dot_s8_u8(0, 4, 6);
    if (n_planes == 2)
        tile_dot_s8_u8(1, 4, 7);
    if (two) {
        tile_dot_s8_u8(2, 5, 6);
        if (n_planes == 2)
            tile_dot_s8_u8(3, 5, 7);
    }
}

ALWAYS_INLINE void amx_load_sums(const uint8_t *sums, bool fresh, unsigned n_planes, bool two)
{
    if (fresh) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
        return;
    }
    tile_load(0, sums, TILE_ROW_BYTES);
    if (n_planes == 2)
        tile_load(1, sums + TILE_BYTES, TILE_ROW_BYTES);
    if (two) {
        tile_load(2, sums + 2 * TILE_BYTES, TILE_ROW_BYTES);
        if (n_planes == 2)
            tile_load(3, sums + 3 * TILE_BYTES, TILE_ROW_BYTES);
    }
}

/* The stores are in assembly, so the analyser does not see them. */
/* NOLINTNEXTLINE(readability-non-const-parameter) */
ALWAYS_INLINE void amx_store_sums(uint8_t *sums, unsigned n_planes, bool two)
{
    tile_store(0, sums, TILE_ROW_BYTES);
    if (n_planes == 2)
        tile_store(1, sums + TILE_BYTES, TILE_ROW_BYTES);
    if (two) {
        tile_store(2, sums + 2 * TILE_BYTES, TILE_ROW_BYTES);
        if (n_planes == 2)
            tile_store(3, sums + 3 * TILE_BYTES, TILE_ROW_BYTES);
    }
}

/* Adds one chunk's groups of outliers to the sums in memory. */
ALWAYS_INLINE void amx_add_groups(const struct amx_group *g, const struct amx_group *end,
                                  const uint8_t *planes, unsigned n_planes, uint8_t *sums)
{
    for (; g < end; g++) {
        const uint8_t *w = planes + g->in_planes;
        uint8_t *at = sums + g->in_sums;
        __m512i hi = _mm512_set1_epi32(g->hi);
        __m512i s0 = _mm512_dpbusd_epi32(_mm512_load_si512(at), _mm512_load_si512(w), hi);
        if (n_planes == 2) {
            __m512i s1 = _mm512_dpbusd_epi32(_mm512_load_si512(at + TILE_BYTES),
                                             _mm512_load_si512(w + TILE_BYTES), hi);
            _mm512_store_si512(at + TILE_BYTES, s1);
        }
        _mm512_store_si512(at, s0);
    }
}

/* Returns the sums of pair i of the block for a part; the sums of hi are SUMS_BYTES further. */
ALWAYS_INLINE uint8_t *amx_pair_sums(const struct amx_block *b, unsigned part, uint32_t i)
{
    return b->sums + ((size_t)part * b->max_pairs + i) * 2 * SUMS_BYTES;
}

/* Multiplies chunks [chunk, end) of K of a pair with the unpacked part. The vector units process a
 * chunk's groups while the tile unit multiplies. */
ALWAYS_INLINE void amx_multiply_pair(struct amx_block *b, unsigned part, uint32_t i, uint32_t chunk,
                                     uint32_t end, unsigned n_planes, bool two)
{
    struct amx_pair pair = amx_pair_of(b->job->act, b->first_pair + i);
    size_t tile_of_rows = (size_t)b->n_chunks * TILE_BYTES;
    uint8_t *sums = amx_pair_sums(b, part, i), *hi_sums = sums + SUMS_BYTES;
    uint32_t *next_dense = &b->next_dense[part * b->max_pairs + i];
    const struct amx_group *group = pair.groups + (chunk == 0 ? 0 : pair.group_ends[chunk - 1]);
    if (chunk == 0) {
        *next_dense = 0;
        if (pair.counts[0] + pair.counts[1] > 0)
            memset(hi_sums, 0, two ? SUMS_BYTES : SUMS_BYTES / 2);
    }
    amx_load_sums(sums, chunk == 0, n_planes, two);
    for (uint32_t c = chunk; c < end; c++) {
        const uint8_t *planes = b->planes + (size_t)c * PLANES_BYTES;
        const struct amx_group *group_end = pair.groups + pair.group_ends[c];
        amx_multiply_chunk(pair.lo + (size_t)c * TILE_BYTES, tile_of_rows, planes, n_planes, two);
        amx_add_groups(group, group_end, planes, n_planes, hi_sums);
        group = group_end;
    }
    amx_store_sums(sums, n_planes, two);
    uint32_t next = *next_dense, n_dense = pair.counts[0];
    if (next == n_dense || pair.dense[next] >= end)
        return;
    amx_load_sums(hi_sums, false, n_planes, two);
    for (; next < n_dense && pair.dense[next] < end; next++)
        amx_multiply_chunk(pair.hi + (size_t)next * 2 * TILE_BYTES, TILE_BYTES,
                           b->planes + (size_t)pair.dense[next] * PLANES_BYTES, n_planes, two);
    amx_store_sums(hi_sums, n_planes, two);
    *next_dense = next;
}

/* Multiplies all rows of the block with chunks [chunk, end) of the unpacked part. */
ALWAYS_INLINE void amx_multiply_rows(struct amx_block *b, unsigned part, uint32_t chunk,
                                     uint32_t end, unsigned n_planes)
{
    for (uint32_t p = 0; p < b->n_pairs; p++)
        if (b->job->act->base.n_rows - (b->first_pair + p) * PAIR_ROWS > TILE_ROWS)
            amx_multiply_pair(b, part, p, chunk, end, n_planes, true);
        else
            amx_multiply_pair(b, part, p, chunk, end, n_planes, false);
}

static __attribute__((noinline)) void amx_multiply_two(struct amx_block *b, unsigned part,
                                                       uint32_t chunk, uint32_t end)
{
    amx_multiply_rows(b, part, chunk, end, 2);
}

static __attribute__((noinline)) void amx_multiply_one(struct amx_block *b, unsigned part,
                                                       uint32_t chunk, uint32_t end)
{
    amx_multiply_rows(b, part, chunk, end, 1);
}

/* The sums of a row's planes. */
struct amx_row {
    const uint8_t *sums[AMX_MAX_PARTS];
    bool has_hi;
    int64_t bias; /* −2^15·Σa */
};

ALWAYS_INLINE struct amx_row amx_row_of(const struct amx_block *b, uint32_t row)
{
    uint32_t in_pair = row % PAIR_ROWS, i = row / PAIR_ROWS - b->first_pair;
    struct amx_pair pair = amx_pair_of(b->job->act, row / PAIR_ROWS);
    struct amx_row r = {.has_hi = pair.counts[0] + pair.counts[1] > 0, .bias = pair.bias[in_pair]};
    for (unsigned part = 0; part < AMX_MAX_PARTS; part++)
        r.sums[part] = amx_pair_sums(b, part, i) + (size_t)(in_pair / TILE_ROWS) * 2 * TILE_BYTES +
                       (size_t)(in_pair % TILE_ROWS) * TILE_ROW_BYTES;
    return r;
}

/* Returns Σ w·a of one plane: Σ|a| ≤ 29.5·k_total keeps it below 255·29.5·AMX_MAX_K_TOTAL <
 * 2^31. */
ALWAYS_INLINE __m512i amx_plane_sum(const struct amx_row *r, unsigned part, unsigned plane)
{
    const uint8_t *at = r->sums[part] + (size_t)plane * TILE_BYTES;
    __m512i sum = _mm512_load_si512(at);
    if (!r->has_hi)
        return sum;
    __m512i hi = _mm512_load_si512(at + SUMS_BYTES);
    return _mm512_add_epi32(sum, _mm512_sub_epi32(_mm512_slli_epi32(hi, 8), hi));
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

/* T fits 32 bits, so it can be combined modulo 2^32. */
ALWAYS_INLINE void amx_finish_int4(const struct amx_block *b, uint32_t row, uint32_t n)
{
    struct amx_row r = amx_row_of(b, row);
    __m512i total =
        _mm512_add_epi32(amx_plane_sum(&r, 0, 0), _mm512_slli_epi32(amx_plane_sum(&r, 0, 1), 8));
    total = _mm512_add_epi32(total, _mm512_set1_epi32((int32_t)(uint64_t)r.bias));
    if (b->job->y != NULL)
        amx_put_floats(b->job, row, n, _mm512_cvtepi32_ps(total));
    else
        _mm512_mask_storeu_epi32(b->job->sums + row * b->job->sums_stride + n,
                                 amx_output_mask(b->job, n), total);
}

/* T of 8 of the 16 outputs += 2^place·x, in 64 bits. */
ALWAYS_INLINE void amx_add_half(__m512i *total, __m512i x, int half, unsigned place)
{
    __m512i wide = _mm512_cvtepi32_epi64(half == 0 ? _mm512_castsi512_si256(x)
                                                   : _mm512_extracti32x8_epi32(x, 1));
    wide = _mm512_sll_epi64(wide, _mm_cvtsi32_si128((int)place));
    *total = _mm512_add_epi64(*total, wide);
}

ALWAYS_INLINE __m512i amx_join(__m256i first, __m256i second)
{
    return _mm512_inserti32x8(_mm512_castsi256_si512(first), second, 1);
}

/* A 64-bit total, for forms Q8 and S. */
ALWAYS_INLINE void amx_finish_wide(const struct amx_block *b, uint32_t row, uint32_t n,
                                   struct amx_cut cut)
{
    struct amx_row r = amx_row_of(b, row);
    const struct linear_job *job = b->job;
    __m512i first = _mm512_set1_epi64(r.bias * (1 << (cut.bias - 15))), second = first;
#pragma GCC unroll 2
    for (unsigned i = 0; i < cut.n_parts; i++)
#pragma GCC unroll 2
        for (unsigned plane = 0; plane < amx_part_planes(cut.parts[i]); plane++) {
            __m512i sum = amx_plane_sum(&r, i, plane);
            unsigned place = cut.parts[i].from + plane * amx_part_step(cut.parts[i]);
            amx_add_half(&first, sum, 0, place);
            amx_add_half(&second, sum, 1, place);
        }
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

/* Computes all rows of the block × one panel of form Q4 or Q8. */
static void amx_panel_16_bits(struct amx_block *b, uint32_t n)
{
    const struct weight_cpu *w = b->job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS);
    bool is_int8 = w->format == PACK_INT8;
    uint32_t n_runs = w->k_pad / RUN_K;
    for (uint32_t run = 0; run < n_runs; run += PIECE_RUNS) {
        uint32_t end = n_runs - run < PIECE_RUNS ? n_runs : run + PIECE_RUNS;
        if (is_int8)
            amx_unpack_int8(panel, panel_scales(w, panel), b->planes, run, end);
        else if (w->format == PACK_INT4)
            amx_unpack_int4(panel, false, b->planes, run, end);
        else
            amx_unpack_int4(panel, true, b->planes, run, end);
        amx_multiply_two(b, 0, run / 2, (end + 1) / 2);
    }
    if (is_int8)
        for (uint32_t r = b->row_begin; r < b->row_end; r++)
            amx_finish_wide(b, r, n, amx_cut_16_bits);
    else
        for (uint32_t r = b->row_begin; r < b->row_end; r++)
            amx_finish_int4(b, r, n);
}

/* The same for form S: part after part of each piece of K. */
ALWAYS_INLINE void amx_panel_super(struct amx_block *b, uint32_t n, struct super_form f,
                                   struct amx_cut cut)
{
    const struct weight_cpu *w = b->job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS);
    uint32_t n_runs = w->k_pad / RUN_K;
    for (uint32_t run = 0; run < n_runs; run += PIECE_RUNS) {
        uint32_t end = n_runs - run < PIECE_RUNS ? n_runs : run + PIECE_RUNS;
#pragma GCC unroll 2
        for (unsigned i = 0; i < cut.n_parts; i++) {
            amx_unpack_super(w, panel, f, cut.bias, cut.parts[i], b->planes, run, end);
            if (amx_part_planes(cut.parts[i]) == 2)
                amx_multiply_two(b, i, run / 2, (end + 1) / 2);
            else
                amx_multiply_one(b, i, run / 2, (end + 1) / 2);
        }
    }
    for (uint32_t r = b->row_begin; r < b->row_end; r++)
        amx_finish_wide(b, r, n, cut);
}

#define AMX_SUPER_FUNCTION(type)                                                                   \
    static __attribute__((noinline)) void amx_panel_##type(struct amx_block *b, uint32_t n)        \
    {                                                                                              \
        amx_panel_super(b, n, super_forms[type], amx_cuts[type]);                                  \
    }
#define AMX_SUPER_CASE(type)                                                                       \
    case type:                                                                                     \
        amx_panel_##type(b, n);                                                                    \
        break;
SUPER_FORMS(AMX_SUPER_FUNCTION)

static __attribute__((noinline)) void amx_panel_24_bits(struct amx_block *b, uint32_t n)
{
    amx_panel_super(b, n, super_forms[DTYPE_Q5_K], amx_cut_24_bits);
}

static void amx_run_panel(struct amx_block *b, uint32_t n)
{
    const struct weight_cpu *w = b->job->w;
    if (w->format != PACK_SUPER) {
        amx_panel_16_bits(b, n);
        return;
    }
    if (w->base.source == DTYPE_Q5_K && amx_fits_24_bits(w, weight_panel(w, n / PANEL_ROWS))) {
        amx_panel_24_bits(b, n);
        return;
    }
    switch ((enum dtype)w->base.source) {
        SUPER_FORMS(AMX_SUPER_CASE)
    default:
        break;
    }
}

ALWAYS_INLINE bool amx_knows(const struct weight_cpu *w)
{
    bool is_known = w->format == PACK_INT4 || w->format == PACK_INT4_PLAIN ||
                    w->format == PACK_INT8 || w->format == PACK_SUPER;
    return is_known && w->k_pad > 0 && w->k_pad <= AMX_MAX_K && w->base.k_total <= AMX_MAX_K_TOTAL;
}

/* Returns true if a share of n_rows rows is faster in tiles (linear_amx.h). */
ALWAYS_INLINE bool amx_takes(const struct weight_cpu *w, uint32_t n_rows)
{
    uint32_t min_rows = AMX_MIN_ROWS;
    if (w->format == PACK_SUPER) {
        struct amx_cut cut = amx_cuts[w->base.source];
        unsigned n_planes = amx_part_planes(cut.parts[0]);
        if (cut.n_parts > 1)
            n_planes += amx_part_planes(cut.parts[1]);
        min_rows = n_planes == 4   ? AMX_MIN_ROWS_FOUR
                   : n_planes == 3 ? AMX_MIN_ROWS_THREE
                                   : AMX_MIN_ROWS;
    }
    return n_rows >= min_rows && amx_knows(w);
}

/* Arranges rows [begin, end) for amx_linear_int(); rows wider than AMX_MAX_K are not arranged. */
static void amx_arrange(struct act_cpu *act, uint32_t begin, uint32_t end)
{
    for (uint32_t row = begin; row < end && act->k_pad <= AMX_MAX_K; row += PAIR_ROWS)
        amx_arrange_pair(act, row / PAIR_ROWS);
}

/* Computes a share with a weight that amx_knows(); its rows must be arranged. */
static void amx_linear_int(const struct linear_job *job, const struct linear_share *share)
{
    struct amx_block b = {.job = job, .n_chunks = (job->w->k_pad + CHUNK_K - 1) / CHUNK_K};
    struct tile_config config = tile_config_whole();
    amx_lay_out(&b, share->scratch);
    tile_configure(&config);
    uint32_t step = amx_block_rows(b.n_chunks);
    for (uint32_t row = share->row_begin; row < share->row_end; row = b.row_end) {
        b.row_begin = row;
        b.first_pair = row / PAIR_ROWS;
        b.row_end = b.first_pair * PAIR_ROWS + step;
        b.row_end = b.row_end < share->row_end ? b.row_end : share->row_end;
        b.n_pairs = (b.row_end + PAIR_ROWS - 1) / PAIR_ROWS - b.first_pair;
        for (uint32_t n = share->n_begin; n < share->n_end; n += PANEL_ROWS)
            amx_run_panel(&b, n);
    }
    tile_release();
}
