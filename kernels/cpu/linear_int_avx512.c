/* Integer linear in AVX-512 VNNI: 16 outputs in the 16 dword lanes. A run of 32 columns is 8
 * vpdpbusd into D, started at −8·A (or −128·A) to make the codes signed; one more multiplication
 * applies the run's (isw, ioff), exact in int32. Per call: 2·m·n·k operations, n·k·5/8 (or 17/16)
 * bytes of weights. Bound at m = 1: memory; at m ≥ 4: one vpdpbusd per cycle, of which 8/9 is
 * weights' work. */
#include <immintrin.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/weight_cpu.h"

enum { TILE_PANELS = 2, TILE_ROWS = 4, INT8_TILE_ROWS = 6 };

/* The panels of a tile: n of them, each so many outputs and bytes after the one before. */
struct panels {
    int n;
    uint32_t apart_rows;
    size_t apart_bytes;
};

/* What one row of activations gives a tile. */
struct row_view {
    const int8_t *lo;
    const struct act_sums *sums;
};

ALWAYS_INLINE struct row_view view_row(const struct linear_job *job, uint32_t row)
{
    return (struct row_view){act_lo(job->act, row), act_run_sums(job->act, row)};
}

ALWAYS_INLINE __m512i broadcast4(const int8_t *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
}

/* D in the low halves, A in the high halves: against pairs (isw, ioff) one vpdpwssd does both. */
ALWAYS_INLINE __m512i with_sum(__m512i d, int32_t in_high_half)
{
    return _mm512_ternarylogic_epi32(d, _mm512_set1_epi32(0xFFFF), _mm512_set1_epi32(in_high_half),
                                     0xEA); /* (d & mask) | sum */
}

ALWAYS_INLINE __mmask16 output_mask(const struct linear_job *job, uint32_t n)
{
    uint32_t left = job->w->base.n_rows - n;
    return (__mmask16)(left >= PANEL_ROWS ? 0xFFFF : (1u << left) - 1);
}

ALWAYS_INLINE void put_int4(const struct linear_job *job, uint32_t row, uint32_t n, __m512i total)
{
    __mmask16 mask = output_mask(job, n);
    if (job->y == NULL) {
        _mm512_mask_storeu_epi32(job->sums + row * job->sums_stride + n, mask, total);
        return;
    }
    __m512 unit = _mm512_loadu_ps(weight_units(job->w) + n),
           scale = _mm512_mul_ps(unit, _mm512_set1_ps(job->act->scale[row]));
    _mm512_mask_storeu_ps(job->y + row * job->y_stride + n, mask,
                          _mm512_mul_ps(_mm512_cvtepi32_ps(total), scale));
}

/* Adds 255 times the outlier plane of a row to the totals of the panels. */
ALWAYS_INLINE void add_outliers_int4(const struct linear_job *job, uint32_t row,
                                     const uint8_t *panel, struct panels at, __m512i total[])
{
    const struct act_outlier *o = act_outliers(job->act, row);
    uint32_t n = job->act->n_outliers[row];
    __m512i plane[TILE_PANELS], nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int p = 0; p < at.n; p++)
        plane[p] = _mm512_setzero_si512();
    for (; n > 0; n--, o++) {
        const uint8_t *run = panel + (size_t)(o->group / 8) * INT4_RUN_BYTES;
        uint32_t in_run = o->group % 8;
        __m128i shift = _mm_cvtsi32_si128((int)(in_run / 4 * 4));
        __m512i hi = _mm512_set1_epi32(o->hi), start = _mm512_set1_epi32(o->sums.times_minus_8);
#pragma GCC unroll 4
        for (int p = 0; p < at.n; p++) {
            const uint8_t *here = run + (size_t)p * at.apart_bytes;
            __m512i w = _mm512_load_si512(here + in_run % 4 * 64);
            w = _mm512_and_si512(_mm512_srl_epi16(w, shift), nibble);
            __m512i d = _mm512_dpbusd_epi32(start, w, hi);
            plane[p] = _mm512_dpwssd_epi32(plane[p], with_sum(d, o->sums.in_high_half),
                                           _mm512_load_si512(here + 256));
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < at.n; p++)
        total[p] =
            _mm512_add_epi32(total[p], _mm512_sub_epi32(_mm512_slli_epi32(plane[p], 8), plane[p]));
}

ALWAYS_INLINE void tile_int4(const struct linear_job *job, uint32_t row, uint32_t n,
                             struct panels at, int n_rows)
{
    const struct weight_cpu *w = job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS), *run = panel;
    struct row_view x[TILE_ROWS];
    __m512i total[TILE_ROWS][TILE_PANELS], d[TILE_ROWS][TILE_PANELS];
    __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        x[m] = view_row(job, row + (uint32_t)m);
#pragma GCC unroll 4
        for (int p = 0; p < at.n; p++)
            total[m][p] = _mm512_setzero_si512();
    }
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, run += INT4_RUN_BYTES) {
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
#pragma GCC unroll 4
            for (int p = 0; p < at.n; p++)
                d[m][p] = _mm512_set1_epi32(x[m].sums[i].times_minus_8);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            __m512i low[TILE_PANELS], high[TILE_PANELS];
#pragma GCC unroll 4
            for (int p = 0; p < at.n; p++) {
                __m512i codes = _mm512_load_si512(run + (size_t)p * at.apart_bytes + v * 64);
                low[p] = _mm512_and_si512(codes, nibble);
                high[p] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
            }
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++) {
                const int8_t *lo = x[m].lo + (size_t)i * RUN_K + v * 4;
                __m512i a = broadcast4(lo), b = broadcast4(lo + 16);
#pragma GCC unroll 4
                for (int p = 0; p < at.n; p++) {
                    d[m][p] = _mm512_dpbusd_epi32(d[m][p], low[p], a);
                    d[m][p] = _mm512_dpbusd_epi32(d[m][p], high[p], b);
                }
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < at.n; p++) {
            __m512i pairs = _mm512_load_si512(run + (size_t)p * at.apart_bytes + 256);
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++)
                total[m][p] = _mm512_dpwssd_epi32(
                    total[m][p], with_sum(d[m][p], x[m].sums[i].in_high_half), pairs);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        if (job->act->n_outliers[row + (uint32_t)m] > 0)
            add_outliers_int4(job, row + (uint32_t)m, panel, at, total[m]);
#pragma GCC unroll 4
        for (int p = 0; p < at.n; p++)
            put_int4(job, row + (uint32_t)m, n + (uint32_t)p * at.apart_rows, total[m][p]);
    }
}

ALWAYS_INLINE void rows_int4(const struct linear_job *job, const struct linear_share *share,
                             uint32_t n, struct panels at)
{
    uint32_t row = share->row_begin;
    for (; row + TILE_ROWS <= share->row_end; row += TILE_ROWS)
        tile_int4(job, row, n, at, TILE_ROWS);
    switch (share->row_end - row) {
    case 3:
        tile_int4(job, row, n, at, 3);
        break;
    case 2:
        tile_int4(job, row, n, at, 2);
        break;
    case 1:
        tile_int4(job, row, n, at, 1);
        break;
    default:
        break;
    }
}

/* T = low + 256·high + 255·plane in 64 bits, for 8 of the 16 lanes. */
ALWAYS_INLINE __m512i total_int8(__m256i low, __m256i high, __m256i plane)
{
    __m512i wide = _mm512_cvtepi32_epi64(plane);
    __m512i sum = _mm512_add_epi64(_mm512_cvtepi32_epi64(low),
                                   _mm512_slli_epi64(_mm512_cvtepi32_epi64(high), 8));
    return _mm512_add_epi64(sum, _mm512_sub_epi64(_mm512_slli_epi64(wide, 8), wide));
}

ALWAYS_INLINE void put_int8(const struct linear_job *job, uint32_t row, uint32_t n, __m512i low,
                            __m512i high, __m512i plane)
{
    __m512i a = total_int8(_mm512_castsi512_si256(low), _mm512_castsi512_si256(high),
                           _mm512_castsi512_si256(plane)),
            b = total_int8(_mm512_extracti32x8_epi32(low, 1), _mm512_extracti32x8_epi32(high, 1),
                           _mm512_extracti32x8_epi32(plane, 1));
    __mmask16 mask = output_mask(job, n);
    if (job->y == NULL) {
        __m512i all_low = _mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)),
                                             _mm512_cvtepi64_epi32(b), 1);
        __m512i all_high = _mm512_inserti32x8(
            _mm512_castsi256_si512(_mm512_cvtepi64_epi32(_mm512_srai_epi64(a, 16))),
            _mm512_cvtepi64_epi32(_mm512_srai_epi64(b, 16)), 1);
        _mm512_mask_storeu_epi32(job->sums + row * job->sums_stride + n, mask,
                                 _mm512_and_si512(all_low, _mm512_set1_epi32(0xFFFF)));
        _mm512_mask_storeu_epi32(job->high + row * job->y_stride + n, mask, all_high);
        return;
    }
    __m512 total =
        _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(a)), _mm512_cvtepi64_ps(b), 1);
    __m512 unit = _mm512_loadu_ps(weight_units(job->w) + n),
           scale = _mm512_mul_ps(unit, _mm512_set1_ps(job->act->scale[row]));
    _mm512_mask_storeu_ps(job->y + row * job->y_stride + n, mask, _mm512_mul_ps(total, scale));
}

/* Σ isw·D over the outlier groups of a row: below 7,600·K, so one int32 is enough. */
ALWAYS_INLINE __m512i outliers_int8(const struct linear_job *job, uint32_t row,
                                    const uint8_t *panel, const int16_t *scales)
{
    const struct act_outlier *o = act_outliers(job->act, row);
    __m512i plane = _mm512_setzero_si512();
    for (uint32_t n = job->act->n_outliers[row]; n > 0; n--, o++) {
        __m512i w = _mm512_load_si512(panel + (size_t)o->group * 64);
        __m512i d = _mm512_dpbusd_epi32(_mm512_set1_epi32(o->sums.times_minus_128), w,
                                        _mm512_set1_epi32(o->hi));
        __m256i isw = _mm256_load_si256(
            (const __m256i *)(const void *)(scales + (size_t)(o->group / 8) * PANEL_ROWS));
        plane = _mm512_add_epi32(plane, _mm512_mullo_epi32(d, _mm512_cvtepi16_epi32(isw)));
    }
    return plane;
}

ALWAYS_INLINE void tile_int8(const struct linear_job *job, uint32_t row, uint32_t n, int n_rows)
{
    const struct weight_cpu *w = job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS), *run = panel;
    const int16_t *scales = panel_scales(w, panel);
    struct row_view x[INT8_TILE_ROWS];
    __m512i low[INT8_TILE_ROWS], high[INT8_TILE_ROWS], d[INT8_TILE_ROWS];
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        x[m] = view_row(job, row + (uint32_t)m);
        low[m] = high[m] = _mm512_setzero_si512();
    }
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, run += INT8_RUN_BYTES) {
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
            d[m] = _mm512_set1_epi32(x[m].sums[i].times_minus_128);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) {
            __m512i codes = _mm512_load_si512(run + v * 64);
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++)
                d[m] = _mm512_dpbusd_epi32(d[m], codes,
                                           broadcast4(x[m].lo + (size_t)i * RUN_K + v * 4));
        }
        __m512i isw = _mm512_cvtepu16_epi32(
            _mm256_load_si256((const __m256i *)(const void *)(scales + (size_t)i * PANEL_ROWS)));
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++) { /* D = 256·(D >> 8) + (D & 255): both fit 16 bits */
            low[m] =
                _mm512_dpwssd_epi32(low[m], _mm512_and_si512(d[m], _mm512_set1_epi32(255)), isw);
            high[m] = _mm512_dpwssd_epi32(high[m], _mm512_srai_epi32(d[m], 8), isw);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++)
        put_int8(job, row + (uint32_t)m, n, low[m], high[m],
                 outliers_int8(job, row + (uint32_t)m, panel, scales));
}

ALWAYS_INLINE void rows_int8(const struct linear_job *job, const struct linear_share *share,
                             uint32_t n)
{
    uint32_t row = share->row_begin;
    for (; row + INT8_TILE_ROWS <= share->row_end; row += INT8_TILE_ROWS)
        tile_int8(job, row, n, INT8_TILE_ROWS);
    for (; row + 3 <= share->row_end; row += 3)
        tile_int8(job, row, n, 3);
    for (; row < share->row_end; row++)
        tile_int8(job, row, n, 1);
}

void linear_int_avx512(const struct linear_job *job, const struct linear_share *share)
{
    uint32_t n = share->n_begin;
    if (job->w->format == PACK_INT8) {
        for (; n < share->n_end; n += PANEL_ROWS)
            rows_int8(job, share, n);
        return;
    }
    if (share->row_end - share->row_begin > 1) {
        /* One panel from each half of the share: two long streams. Neighbours would be two short
         * ones, often in one page, and the prefetcher loses both. One row needs no second one. */
        uint32_t n_pairs = (share->n_end - n) / (TILE_PANELS * PANEL_ROWS);
        struct panels pair = {TILE_PANELS, n_pairs * PANEL_ROWS, n_pairs * job->w->panel_bytes};
        for (uint32_t i = 0; i < n_pairs; i++, n += PANEL_ROWS)
            rows_int4(job, share, n, pair);
        n += n_pairs * PANEL_ROWS;
    }
    for (; n < share->n_end; n += PANEL_ROWS)
        rows_int4(job, share, n, (struct panels){.n = 1});
}
