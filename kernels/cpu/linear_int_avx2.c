/* Integer linear in AVX2: 8 outputs in the 8 dword lanes, half a panel. 4-bit codes are unsigned,
 * so vpmaddubsw(q, lo) takes them as they are: 8 products of at most 15·127·2 stay within 16 bits.
 * 8-bit codes go through |q| and sign(lo, q): 128·127·2 does not saturate, and lo is never −128.
 * The bits are those of every other kernel set. */
#include <immintrin.h>
#include <stdbool.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/weight_cpu.h"

enum { TILE_ROWS = 4, LANES = 8 };

ALWAYS_INLINE __m256i broadcast4(const int8_t *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
}

ALWAYS_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

ALWAYS_INLINE __m256i load_scales(const int16_t *scales)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)scales));
}

/* The scales of half a run whose codes for lane `lane` are at `run`. */
ALWAYS_INLINE const uint8_t *run_scales(const uint8_t *run, uint32_t lane, bool plain)
{
    return run + 256 - (plain ? (size_t)lane * 2 : 0);
}

ALWAYS_INLINE __m256i dot_int4(const uint8_t *run, uint32_t group, __m256i a)
{
    __m256i codes = load256(run + group % 4 * 64), nibble = _mm256_set1_epi8(15);
    if (group >= 4)
        codes = _mm256_srli_epi16(codes, 4);
    return _mm256_maddubs_epi16(_mm256_and_si256(codes, nibble), a);
}

/* (isw, ioff) against (D, A), with D = products − 8·A. */
ALWAYS_INLINE __m256i scale_int4(__m256i products, int32_t minus_8, int32_t in_high_half,
                                 const uint8_t *scales, bool plain)
{
    __m256i d = _mm256_add_epi32(_mm256_madd_epi16(products, _mm256_set1_epi16(1)),
                                 _mm256_set1_epi32(minus_8));
    if (plain)
        return _mm256_madd_epi16(d, load_scales((const int16_t *)(const void *)scales));
    d = _mm256_blend_epi16(d, _mm256_set1_epi32(in_high_half), 0xAA);
    return _mm256_madd_epi16(d, load256(scales));
}

/* Stores the first `count` of 8 totals of a row. */
static void put_int4(const struct linear_job *job, uint32_t row, uint32_t n, __m256i total)
{
    int32_t sums[LANES];
    uint32_t left = job->w->base.n_rows > n ? job->w->base.n_rows - n : 0;
    if (left >= LANES && job->y != NULL) {
        __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(weight_units(job->w) + n),
                                     _mm256_set1_ps(job->act->scale[row]));
        _mm256_storeu_ps(job->y + row * job->y_stride + n,
                         _mm256_mul_ps(_mm256_cvtepi32_ps(total), scale));
        return;
    }
    _mm256_storeu_si256((__m256i *)(void *)sums, total);
    for (uint32_t i = 0; i < LANES && i < left; i++)
        linear_int_put(job, row, n + i, sums[i]);
}

ALWAYS_INLINE __m256i outliers_int4(const struct linear_job *job, uint32_t row, const uint8_t *half,
                                    uint32_t lane, bool plain)
{
    const struct act_outlier *o = act_outliers(job->act, row);
    __m256i plane = _mm256_setzero_si256();
    for (uint32_t n = job->act->n_outliers[row]; n > 0; n--, o++) {
        const uint8_t *run = half + (size_t)(o->group / 8) * int4_run_bytes(job->w);
        __m256i products = dot_int4(run, o->group % 8, _mm256_set1_epi32(o->hi));
        plane = _mm256_add_epi32(plane, scale_int4(products, o->minus_8, o->in_high_half,
                                                   run_scales(run, lane, plain), plain));
    }
    return _mm256_sub_epi32(_mm256_slli_epi32(plane, 8), plane);
}

ALWAYS_INLINE void tile_int4(const struct linear_job *job, uint32_t row, uint32_t n, int n_rows,
                             bool plain)
{
    const struct weight_cpu *w = job->w;
    const uint32_t lane = n % PANEL_ROWS;
    const uint8_t *half = weight_panel(w, n / PANEL_ROWS) + n % PANEL_ROWS * 4, *run = half;
    __m256i total[TILE_ROWS];
#pragma GCC unroll 4
    for (int m = 0; m < n_rows; m++)
        total[m] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, run += int4_run_bytes(w)) {
        __m256i products[TILE_ROWS];
#pragma GCC unroll 4
        for (int m = 0; m < n_rows; m++)
            products[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (uint32_t g = 0; g < 8; g++)
#pragma GCC unroll 4
            for (int m = 0; m < n_rows; m++) {
                const int8_t *lo = act_lo(job->act, row + (uint32_t)m) + (size_t)i * RUN_K;
                products[m] =
                    _mm256_add_epi16(products[m], dot_int4(run, g, broadcast4(lo + g * 4)));
            }
#pragma GCC unroll 4
        for (int m = 0; m < n_rows; m++) {
            struct act_sums sums = act_run_sums(job->act, row + (uint32_t)m)[i];
            total[m] =
                _mm256_add_epi32(total[m], scale_int4(products[m], sums.minus_8, sums.in_high_half,
                                                      run_scales(run, lane, plain), plain));
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < n_rows; m++)
        put_int4(
            job, row + (uint32_t)m, n,
            _mm256_add_epi32(total[m], outliers_int4(job, row + (uint32_t)m, half, lane, plain)));
}

/* D of one group of four columns, codes stored as q + 128. */
ALWAYS_INLINE __m256i dot_int8(const uint8_t *codes, __m256i a)
{
    __m256i q = _mm256_xor_si256(load256(codes), _mm256_set1_epi8(-128));
    __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(a, q));
    return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
}

static void put_int8(const struct linear_job *job, uint32_t row, uint32_t n, __m256i low,
                     __m256i high, __m256i plane)
{
    int32_t lows[LANES], highs[LANES], planes[LANES];
    uint32_t left = job->w->base.n_rows > n ? job->w->base.n_rows - n : 0;
    _mm256_storeu_si256((__m256i *)(void *)lows, low);
    _mm256_storeu_si256((__m256i *)(void *)highs, high);
    _mm256_storeu_si256((__m256i *)(void *)planes, plane);
    for (uint32_t i = 0; i < LANES && i < left; i++)
        linear_int_put(job, row, n + i,
                       lows[i] + (int64_t)highs[i] * 256 + (int64_t)planes[i] * 255);
}

ALWAYS_INLINE void tile_int8(const struct linear_job *job, uint32_t row, uint32_t n, int n_rows)
{
    const struct weight_cpu *w = job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS), *half = panel + n % PANEL_ROWS * 4;
    const int16_t *scales = panel_scales(w, panel) + n % PANEL_ROWS;
    __m256i low[TILE_ROWS], high[TILE_ROWS];
#pragma GCC unroll 4
    for (int m = 0; m < n_rows; m++)
        low[m] = high[m] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++) {
        __m256i d[TILE_ROWS], isw = load_scales(scales + (size_t)i * PANEL_ROWS);
#pragma GCC unroll 4
        for (int m = 0; m < n_rows; m++)
            d[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (uint32_t g = 0; g < 8; g++)
#pragma GCC unroll 4
            for (int m = 0; m < n_rows; m++) {
                const int8_t *lo = act_lo(job->act, row + (uint32_t)m) + (size_t)i * RUN_K;
                d[m] = _mm256_add_epi32(
                    d[m], dot_int8(half + ((size_t)i * 8 + g) * 64, broadcast4(lo + g * 4)));
            }
#pragma GCC unroll 4
        for (int m = 0; m < n_rows; m++) {
            __m256i byte = _mm256_and_si256(d[m], _mm256_set1_epi32(255));
            low[m] = _mm256_add_epi32(low[m], _mm256_madd_epi16(byte, isw));
            high[m] = _mm256_add_epi32(high[m], _mm256_madd_epi16(_mm256_srai_epi32(d[m], 8), isw));
        }
    }
    for (int m = 0; m < n_rows; m++) {
        const struct act_outlier *o = act_outliers(job->act, row + (uint32_t)m);
        __m256i plane = _mm256_setzero_si256();
        for (uint32_t i = job->act->n_outliers[row + (uint32_t)m]; i > 0; i--, o++) {
            __m256i d = dot_int8(half + (size_t)o->group * 64, _mm256_set1_epi32(o->hi));
            __m256i isw = _mm256_cvtepi16_epi32(_mm_loadu_si128(
                (const __m128i *)(const void *)(scales + (size_t)(o->group / 8) * PANEL_ROWS)));
            plane = _mm256_add_epi32(plane, _mm256_mullo_epi32(d, isw));
        }
        put_int8(job, row + (uint32_t)m, n, low[m], high[m], plane);
    }
}

void linear_int_avx2(const struct linear_job *job, const struct linear_share *share)
{
    if (job->w->format == PACK_SUPER) {
        linear_super_avx2(job, share);
        return;
    }
    bool int8 = job->w->format == PACK_INT8, plain = job->w->format == PACK_INT4_PLAIN;
    for (uint32_t n = share->n_begin; n < share->n_end; n += LANES) {
        uint32_t row = share->row_begin;
        for (; row + TILE_ROWS <= share->row_end; row += TILE_ROWS) {
            if (int8)
                tile_int8(job, row, n, TILE_ROWS);
            else if (plain)
                tile_int4(job, row, n, TILE_ROWS, true);
            else
                tile_int4(job, row, n, TILE_ROWS, false);
        }
        for (; row < share->row_end; row++) {
            if (int8)
                tile_int8(job, row, n, 1);
            else if (plain)
                tile_int4(job, row, n, 1, true);
            else
                tile_int4(job, row, n, 1, false);
        }
    }
}
