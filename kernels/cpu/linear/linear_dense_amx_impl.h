/* linear_dense_amx_impl.h: BF16 linears with the sums of AMX tiles. Each segment of K (those of the
 * split for a LINEAR_ROW, else one) is summed in runs of 32 columns from its first column. Each run
 * has a chain of FMAs from 0 over the even columns and a chain over the odd columns. Their sum is
 * added to the total, which starts at 0. Segments are added by the tree of 8. Operands are bf16,
 * none nearer to 0 than DENSE_TINY (dense.h). So no product or sum is subnormal, and TDPBF16PS and
 * FMAs give the same bits. Tiles compute AMX_DENSE_MIN_ROWS rows or more, FMAs fewer rows.
 *
 * Activations are stored as tiles (act_cpu.h); a run of a packed panel is a tile. A share works on
 * AMX_DENSE_ROWS rows, on as many panels as have totals that fit the scratch, and in pieces of K. A
 * piece of two panels stays in L1 and a piece of the rows in L2, so a share reads its weights from
 * memory once. Per call: 2·m·n·k operations, 2·n·k bytes of weights per AMX_DENSE_ROWS rows. The
 * includer has the instructions (tiles_amx.h) and the vectors (vec_avx512.h). */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/linear/dense_put.h"
#include "kernels/cpu/linear/linear_amx.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    RUN_BYTES = PANEL_ROWS * RUN_K * 2, /* a tile */
    DENSE_PIECE_RUNS = 16,              /* 512 columns: 32 KiB of two panels */
    QUAD_BYTES = 4 * TILE_BYTES,        /* totals of 32 rows × 32 outputs */
    TOTALS_BYTES = 2 << 20,
    FMA_ROWS = 4,
};

/* The segments of a weight's sum: [bounds[i], bounds[i + 1]). */
struct dense_parts {
    uint32_t n;
    uint32_t bounds[N_SEGMENTS + 1];
};

ALWAYS_INLINE struct dense_parts dense_parts_of(const struct weight_cpu *w)
{
    struct dense_parts parts = {.n = 1, .bounds = {0, w->base.k_local}};
    if (w->base.role == WEIGHT_LINEAR_ROW) {
        parts.n = w->n_parts;
        memcpy(parts.bounds, w->part_bounds, sizeof(parts.bounds));
    }
    return parts;
}

ALWAYS_INLINE uint32_t runs_of(uint32_t columns)
{
    return (columns + RUN_K - 1) / RUN_K;
}

ALWAYS_INLINE __m512 bf16_low(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

ALWAYS_INLINE __m512 bf16_high(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

ALWAYS_INLINE uint32_t present_of(const struct dense_parts *parts)
{
    uint32_t present = 0;
    for (uint32_t i = 0; i < N_SEGMENTS; i++) /* a constant bound shows gcc that i stays in range */
        present |= (uint32_t)(i < parts->n && parts->bounds[i] < parts->bounds[i + 1]) << i;
    return present;
}

/* Computes one segment of nr rows × one panel, by FMAs. */
ALWAYS_INLINE void fma_segment(const struct linear_job *job, uint32_t row, const uint8_t *panel,
                               uint32_t first_run, uint32_t end_run, int nr, __m512 out[FMA_ROWS])
{
#pragma GCC unroll 4
    for (int r = 0; r < nr; r++)
        out[r] = _mm512_setzero_ps();
    for (uint32_t run = first_run; run < end_run; run++) {
        const uint8_t *w = panel + (size_t)run * RUN_BYTES;
        const uint32_t *x[FMA_ROWS];
        __m512 even[FMA_ROWS], odd[FMA_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < nr; r++) {
            x[r] = act_tile_row(job->act, row + (uint32_t)r, run);
            even[r] = odd[r] = _mm512_setzero_ps();
        }
        for (int pair = 0; pair < RUN_K / 2; pair++) {
            __m512i pairs = _mm512_loadu_si512(w + pair * TILE_ROW_BYTES);
            __m512 low = bf16_low(pairs), high = bf16_high(pairs);
            _mm_prefetch((const char *)w + pair * TILE_ROW_BYTES + 2048, _MM_HINT_T0);
#pragma GCC unroll 4
            for (int r = 0; r < nr; r++) {
                __m512i xs = _mm512_set1_epi32((int32_t)x[r][pair]);
                even[r] = _mm512_fmadd_ps(bf16_low(xs), low, even[r]);
                odd[r] = _mm512_fmadd_ps(bf16_high(xs), high, odd[r]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < nr; r++)
            out[r] = _mm512_add_ps(out[r], _mm512_add_ps(even[r], odd[r]));
    }
}

ALWAYS_INLINE void fma_rows(const struct linear_job *job, const struct dense_parts *parts,
                            uint32_t row, uint32_t n, int nr)
{
    const uint8_t *panel = weight_panel(job->w, n / PANEL_ROWS);
    __m512 sums[N_SEGMENTS][FMA_ROWS];
    for (uint32_t s = 0; s < parts->n; s++)
        fma_segment(job, row, panel, parts->bounds[s] / RUN_K, runs_of(parts->bounds[s + 1]), nr,
                    sums[s]);
    for (int r = 0; r < nr; r++) {
        __m512 column[N_SEGMENTS];
        for (uint32_t s = 0; s < parts->n; s++)
            column[s] = sums[s][r];
        dense_store(job, row + (uint32_t)r, n, dense_tree(column, present_of(parts), parts->n));
    }
}

static void dense_by_fma(const struct linear_job *job, const struct linear_share *share)
{
    struct dense_parts parts = dense_parts_of(job->w);
    for (uint32_t n = share->n_begin; n < share->n_end; n += PANEL_ROWS) {
        uint32_t row = share->row_begin;
        for (; row + FMA_ROWS <= share->row_end; row += FMA_ROWS)
            fma_rows(job, &parts, row, n, FMA_ROWS);
        if (row + 2 <= share->row_end) {
            fma_rows(job, &parts, row, n, 2);
            row += 2;
        }
        if (row < share->row_end)
            fma_rows(job, &parts, row, n, 1);
    }
}

/* A part of a share whose totals fit the scratch: 32 rows or more × some pairs of panels. */
struct dense_block {
    const struct linear_job *job;
    struct dense_parts parts;
    uint32_t first_tile, n_tiles; /* tiles of rows */
    uint32_t row_begin, row_end;  /* rows of the share: only these are stored */
    uint32_t n_begin, n_panels;   /* rows of w */
    uint8_t *totals;              /* [segment][pair of panels][pair of tiles][panel 2][tile 2] */
};

ALWAYS_INLINE uint8_t *quad_of(const struct dense_block *b, uint32_t segment, uint32_t panel_pair,
                               uint32_t tile_pair)
{
    size_t n_panel_pairs = (b->n_panels + 1) / 2, n_tile_pairs = (b->n_tiles + 1) / 2;
    return b->totals +
           ((segment * n_panel_pairs + panel_pair) * n_tile_pairs + tile_pair) * QUAD_BYTES;
}

/* Tiles 0, 1: first panel × both tiles of rows; tiles 2, 3: second panel. Adds runs [run, end). */
ALWAYS_INLINE void dense_quad(const uint8_t *a, size_t second_a, const uint8_t *w, size_t second_w,
                              uint32_t n_runs, bool two_tiles, bool two_panels)
{
    for (uint32_t i = 0; i < n_runs; i++, a += TILE_BYTES, w += RUN_BYTES) {
        tile_load(4, a, TILE_ROW_BYTES);
        tile_load(6, w, TILE_ROW_BYTES);
        if (two_tiles)
            tile_load(5, a + second_a, TILE_ROW_BYTES);
        if (two_panels)
            tile_load(7, w + second_w, TILE_ROW_BYTES);
        tile_dot_bf16(0, 4, 6);
        if (two_tiles)
            tile_dot_bf16(1, 5, 6);
        if (two_panels)
            tile_dot_bf16(2, 4, 7);
        if (two_tiles && two_panels)
            tile_dot_bf16(3, 5, 7);
    }
}

ALWAYS_INLINE void load_totals(const uint8_t *quad, bool fresh)
{
    if (fresh) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
        return;
    }
    tile_load(0, quad, TILE_ROW_BYTES);
    tile_load(1, quad + TILE_BYTES, TILE_ROW_BYTES);
    tile_load(2, quad + 2 * TILE_BYTES, TILE_ROW_BYTES);
    tile_load(3, quad + 3 * TILE_BYTES, TILE_ROW_BYTES);
}

/* The stores are in assembly, so the analyser does not see them. */
/* NOLINTNEXTLINE(readability-non-const-parameter) */
ALWAYS_INLINE void store_totals(uint8_t *quad)
{
    tile_store(0, quad, TILE_ROW_BYTES);
    tile_store(1, quad + TILE_BYTES, TILE_ROW_BYTES);
    tile_store(2, quad + 2 * TILE_BYTES, TILE_ROW_BYTES);
    tile_store(3, quad + 3 * TILE_BYTES, TILE_ROW_BYTES);
}

/* Computes runs [run, run + n_runs) of segment s; `fresh`: the first runs of the segment. */
static void dense_piece(const struct dense_block *b, uint32_t s, uint32_t run, uint32_t n_runs,
                        bool fresh)
{
    const struct act_cpu *act = b->job->act;
    size_t tile_of_rows = (size_t)(act->k_pad / RUN_K) * TILE_BYTES,
           panel_bytes = b->job->w->panel_bytes;
    for (uint32_t p = 0; p < b->n_panels; p += 2) {
        const uint8_t *w =
            weight_panel(b->job->w, b->n_begin / PANEL_ROWS + p) + (size_t)run * RUN_BYTES;
        bool two_panels = p + 1 < b->n_panels;
        for (uint32_t t = 0; t < b->n_tiles; t += 2) {
            const uint8_t *a = (const uint8_t *)act->bf16 + (b->first_tile + t) * tile_of_rows +
                               (size_t)run * TILE_BYTES;
            uint8_t *quad = quad_of(b, s, p / 2, t / 2);
            load_totals(quad, fresh);
            if (two_panels && t + 1 < b->n_tiles)
                dense_quad(a, tile_of_rows, w, panel_bytes, n_runs, true, true);
            else if (two_panels)
                dense_quad(a, tile_of_rows, w, panel_bytes, n_runs, false, true);
            else
                dense_quad(a, tile_of_rows, w, panel_bytes, n_runs, t + 1 < b->n_tiles, false);
            store_totals(quad);
        }
    }
}

/* Adds the totals and stores the results. */
static void dense_finish(const struct dense_block *b)
{
    uint32_t present = present_of(&b->parts);
    for (uint32_t p = 0; p < b->n_panels; p++)
        for (uint32_t row = b->row_begin; row < b->row_end; row++) {
            uint32_t tile = row / TILE_ROWS - b->first_tile;
            size_t in_quad = (p % 2 * 2 + tile % 2) * TILE_BYTES + row % TILE_ROWS * TILE_ROW_BYTES;
            __m512 column[N_SEGMENTS];
            for (uint32_t s = 0; s < b->parts.n; s++)
                column[s] = (present >> s & 1) == 0
                                ? _mm512_setzero_ps()
                                : _mm512_loadu_ps(quad_of(b, s, p / 2, tile / 2) + in_quad);
            dense_store(b->job, row, b->n_begin + p * PANEL_ROWS,
                        dense_tree(column, present, b->parts.n));
        }
}

static void dense_run_block(const struct dense_block *b)
{
    for (uint32_t s = 0; s < b->parts.n; s++) {
        uint32_t first = b->parts.bounds[s] / RUN_K, end = runs_of(b->parts.bounds[s + 1]);
        if (b->parts.bounds[s] == b->parts.bounds[s + 1])
            continue;
        for (uint32_t run = first; run < end; run += DENSE_PIECE_RUNS)
            dense_piece(b, s, run, end - run < DENSE_PIECE_RUNS ? end - run : DENSE_PIECE_RUNS,
                        run == first);
    }
    dense_finish(b);
}

/* Computes a share of a BF16 weight with tiles. */
static void dense_by_tiles(const struct linear_job *job, const struct linear_share *share)
{
    struct dense_block b = {.job = job, .parts = dense_parts_of(job->w), .totals = share->scratch};
    struct tile_config config = tile_config_whole();
    tile_configure(&config);
    for (uint32_t row = share->row_begin; row < share->row_end; row = b.row_end) {
        b.row_begin = row;
        b.first_tile = row / TILE_ROWS;
        b.row_end = (b.first_tile + AMX_DENSE_ROWS / TILE_ROWS) * TILE_ROWS;
        b.row_end = b.row_end < share->row_end ? b.row_end : share->row_end;
        b.n_tiles = (b.row_end + TILE_ROWS - 1) / TILE_ROWS - b.first_tile;
        uint32_t pair_bytes = b.parts.n * ((b.n_tiles + 1) / 2) * QUAD_BYTES,
                 most = TOTALS_BYTES / pair_bytes * 2;
        for (b.n_begin = share->n_begin; b.n_begin < share->n_end;
             b.n_begin += b.n_panels * PANEL_ROWS) {
            uint32_t left = (share->n_end - b.n_begin + PANEL_ROWS - 1) / PANEL_ROWS;
            b.n_panels = left < most ? left : most;
            dense_run_block(&b);
        }
    }
    tile_release();
}
