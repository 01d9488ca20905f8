/* Integer linear in AVX-512 VNNI: 16 outputs in the 16 dword lanes. A run of 32 columns is 8
 * vpdpbusd into D. D starts at −8·A (or −128·A), which makes the codes signed. Another
 * multiplication applies the run's (isw, ioff), exact in int32. Per call: 2·m·n·k operations,
 * n·k·5/8 (or 17/16) bytes of weights. Bound at m = 1: memory. Bound at m ≥ 4: one vpdpbusd per
 * cycle, of which 8/9 are for weights. */
#include <immintrin.h>
#include <stdbool.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/weight_cpu.h"

enum { TILE_PANELS = 2, TILE_ROWS = 6 };

/* Prefetch distance of weights, into L2. L1 supports too few outstanding loads to read memory at a
 * core's full rate. Beyond the end of a share lies the next share. */
enum { FAR_BYTES = 8192 };

/* The n panels that a tile reads, and the place of its results; plain: PACK_INT4_PLAIN. */
struct source {
    int n;
    bool plain;
    uint32_t run_bytes;
    const uint8_t *runs[TILE_PANELS];
    uint32_t outputs[TILE_PANELS];
};

ALWAYS_INLINE __m512i broadcast4(const int8_t *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
}

/* D in the low halves, A in the high halves: one vpdpwssd with pairs (isw, ioff) computes both
 * terms. */
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

/* Loads pairs (isw, ioff) of a run; (isw, 0) for forms without offsets. */
ALWAYS_INLINE __m512i load_pairs(const uint8_t *run, bool plain)
{
    if (plain)
        return _mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const __m256i *)(const void *)(run + 256)));
    return _mm512_loadu_si512(run + 256);
}

/* Loads the codes of column group g of a run. */
ALWAYS_INLINE __m512i load_codes(const uint8_t *run, uint32_t g)
{
    __m512i w = _mm512_loadu_si512(run + g % 4 * 64);
    return _mm512_and_si512(g < 4 ? w : _mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}

/* Adds 255 times the outlier plane of a row to the totals of the panels. */
ALWAYS_INLINE void add_outliers(const struct linear_job *job, uint32_t row,
                                const struct source *src, __m512i total[])
{
    const struct act_outlier *o = act_outliers(job->act, row);
    __m512i plane[TILE_PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < src->n; p++)
        plane[p] = _mm512_setzero_si512();
    for (uint32_t n = job->act->n_outliers[row]; n > 0; n--, o++) {
        uint32_t run = o->group / 8, g = o->group % 8;
        __m512i hi = _mm512_set1_epi32(o->hi), start = _mm512_set1_epi32(o->minus_8);
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++) {
            __m512i d = _mm512_dpbusd_epi32(
                start, load_codes(src->runs[p] + (size_t)run * src->run_bytes, g), hi);
            if (!src->plain)
                d = with_sum(d, o->in_high_half);
            plane[p] = _mm512_dpwssd_epi32(
                plane[p], d, load_pairs(src->runs[p] + (size_t)run * src->run_bytes, src->plain));
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < src->n; p++)
        total[p] =
            _mm512_add_epi32(total[p], _mm512_sub_epi32(_mm512_slli_epi32(plane[p], 8), plane[p]));
}

ALWAYS_INLINE void tile(const struct linear_job *job, uint32_t row, const struct source *src,
                        int n_rows)
{
    const uint32_t n_runs = job->w->k_pad / RUN_K;
    const int8_t *lo[TILE_ROWS];
    const struct act_sums *sums[TILE_ROWS];
    __m512i total[TILE_ROWS][TILE_PANELS], d[TILE_ROWS][TILE_PANELS];
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        lo[m] = act_lo(job->act, row + (uint32_t)m);
        sums[m] = act_run_sums(job->act, row + (uint32_t)m);
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            total[m][p] = _mm512_setzero_si512();
    }
    for (uint32_t i = 0; i < n_runs; i++) {
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
#pragma GCC unroll 2
            for (int p = 0; p < src->n; p++)
                d[m][p] = _mm512_set1_epi32(sums[m][i].minus_8);
#pragma GCC unroll 8
        for (uint32_t g = 0; g < 8; g++) {
            __m512i w[TILE_PANELS];
#pragma GCC unroll 2
            for (int p = 0; p < src->n; p++)
                if (g < 5)
                    _mm_prefetch(src->runs[p] + (size_t)i * src->run_bytes + g * 64 + FAR_BYTES,
                                 _MM_HINT_T1);
#pragma GCC unroll 2
            for (int p = 0; p < src->n; p++)
                w[p] = load_codes(src->runs[p] + (size_t)i * src->run_bytes, g);
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++) {
                __m512i a = broadcast4(lo[m] + (size_t)i * RUN_K + g * 4);
#pragma GCC unroll 2
                for (int p = 0; p < src->n; p++)
                    d[m][p] = _mm512_dpbusd_epi32(d[m][p], w[p], a);
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++) {
            __m512i pairs = load_pairs(src->runs[p] + (size_t)i * src->run_bytes, src->plain);
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++) {
                if (!src->plain)
                    d[m][p] = with_sum(d[m][p], sums[m][i].in_high_half);
                total[m][p] = _mm512_dpwssd_epi32(total[m][p], d[m][p], pairs);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        if (job->act->n_outliers[row + (uint32_t)m] > 0)
            add_outliers(job, row + (uint32_t)m, src, total[m]);
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            put_int4(job, row + (uint32_t)m, src->outputs[p], total[m][p]);
    }
}

ALWAYS_INLINE void rows_of(const struct linear_job *job, const struct linear_share *share,
                           const struct source *src)
{
    uint32_t row = share->row_begin;
    for (; row + TILE_ROWS <= share->row_end; row += TILE_ROWS)
        tile(job, row, src, TILE_ROWS);
    if (row + 4 <= share->row_end) {
        tile(job, row, src, 4);
        row += 4;
    }
    if (row + 2 <= share->row_end) {
        tile(job, row, src, 2);
        row += 2;
    }
    if (row < share->row_end)
        tile(job, row, src, 1);
}

ALWAYS_INLINE void linear_int4(const struct linear_job *job, const struct linear_share *share,
                               bool plain)
{
    uint32_t n = share->n_begin;
    struct source src = {
        .n = 2, .plain = plain, .run_bytes = plain ? INT4_PLAIN_RUN_BYTES : INT4_RUN_BYTES};
    if (share->row_end - share->row_begin > 1) {
        /* Takes a panel from each half of the share, so that memory is read in two long streams.
         * Adjacent panels would be two short streams, often in the same page, and the prefetcher
         * would lose both. A single row needs no second panel. */
        uint32_t apart = (share->n_end - n) / (2 * PANEL_ROWS) * PANEL_ROWS;
        for (uint32_t end = n + apart; n < end; n += PANEL_ROWS) {
            src.runs[0] = weight_panel(job->w, n / PANEL_ROWS);
            src.runs[1] = weight_panel(job->w, (n + apart) / PANEL_ROWS);
            src.outputs[0] = n;
            src.outputs[1] = n + apart;
            rows_of(job, share, &src);
        }
        n += apart;
    }
    src.n = 1;
    for (; n < share->n_end; n += PANEL_ROWS) {
        src.runs[0] = weight_panel(job->w, n / PANEL_ROWS);
        src.outputs[0] = n;
        rows_of(job, share, &src);
    }
}

void linear_int_avx512(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum pack_format)job->w->format) {
    case PACK_INT4:
        linear_int4(job, share, false);
        break;
    case PACK_INT4_PLAIN:
        linear_int4(job, share, true);
        break;
    default:
        linear_super_avx512(job, share);
        break;
    }
}
