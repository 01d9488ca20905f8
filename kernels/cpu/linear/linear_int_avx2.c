/* Integer linear in AVX2: a panel of 16 outputs as two halves of 8 dword lanes. 4-bit codes are
 * unsigned, so vpmaddubsw(q, lo) needs no conversion. The products of a run's 8 groups (8·15·127·2)
 * add up in 16 bits; then a vpmaddwd with (isw, isw) widens them to 32 bits. The remaining term
 * (ioff − 8·isw)·A is a vpmaddwd of (isw, ioff) with (−8·A, A). A run of a row takes 17 products
 * and sums and 4 more instructions. Bound: four vector instructions per cycle, 96 of 128
 * operations. 8-bit codes use |q| and sign(lo, q): 128·127·2 does not saturate, and lo is never
 * −128. For more rows see linear_wide_avx2.h. The bits are those of every other kernel set. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/linear/linear_put_avx2.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"

enum { TILE_ROWS = 6, TILE_ROWS_INT8 = 4, LANES = 8, HALVES = 2 };

ALWAYS_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

ALWAYS_INLINE __m256i broadcast4(const void *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
}

/* Adds in this order: gcc would make a tree of a sum with several terms, and then keep all terms in
 * registers. */
ALWAYS_INLINE __m256i add16(__m256i a, __m256i b)
{
    a = _mm256_add_epi16(a, b);
    __asm__("" : "+x"(a));
    return a;
}

/* Loads 8 words of 16 bits as (word, 0). */
ALWAYS_INLINE __m256i load_words(const int16_t *words)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)words));
}

/* Rows 3 to 5 of a tile have their own base pointer: two bases and a stride take fewer registers
 * than six pointers. */
struct rows {
    const int8_t *lo, *lo_third;
    const struct act_sums *sums, *sums_third;
    size_t k_pad, n_runs;
};

ALWAYS_INLINE struct rows rows_of(const struct act_cpu *act, uint32_t row)
{
    struct rows r = {.lo = act_lo(act, row),
                     .sums = act_run_sums(act, row),
                     .k_pad = act->k_pad,
                     .n_runs = act->k_pad / ACT_RUN};
    r.lo_third = r.lo + 3 * r.k_pad;
    r.sums_third = r.sums + 3 * r.n_runs;
    __asm__(""
            : "+r"(r.lo_third),
              "+r"(r.sums_third)); /* stops gcc from deriving them from the other pointers */
    return r;
}

ALWAYS_INLINE const int8_t *row_lo(const struct rows *r, int m)
{
    return m < 3 ? r->lo + (size_t)m * r->k_pad : r->lo_third + (size_t)(m - 3) * r->k_pad;
}

ALWAYS_INLINE const struct act_sums *row_sums(const struct rows *r, int m)
{
    return m < 3 ? r->sums + (size_t)m * r->n_runs : r->sums_third + (size_t)(m - 3) * r->n_runs;
}

ALWAYS_INLINE void next_run(struct rows *r)
{
    r->lo += RUN_K, r->lo_third += RUN_K;
    r->sums++, r->sums_third++;
}

/* Loads the codes of column group g of half h of a run. */
ALWAYS_INLINE __m256i codes_int4(const uint8_t *run, uint32_t g, int h)
{
    __m256i codes = load256(run + g % 4 * 64 + h * 32);
    if (g >= 4)
        codes = _mm256_srli_epi16(codes, 4);
    return _mm256_and_si256(codes, _mm256_set1_epi8(15));
}

/* Loads pairs (isw, ioff) of half h of a run; (isw, 0) for forms without offsets. */
ALWAYS_INLINE __m256i pairs_int4(const uint8_t *run, int h, bool plain)
{
    const uint8_t *scales = run + 256;
    if (plain)
        return load_words((const int16_t *)(const void *)(scales + (size_t)h * 16));
    return load256(scales + (size_t)h * 32);
}

/* Makes (isw, isw) from pairs. */
ALWAYS_INLINE __m256i both_isw(__m256i pairs)
{
    return _mm256_shuffle_epi8(pairs,
                               _mm256_set_epi8(13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0,
                                               13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0));
}

/* Returns isw·Σ q·a + (ioff − 8·isw)·A, from the products and (−8·A, A). */
ALWAYS_INLINE __m256i scale_int4(__m256i products, __m256i isw, __m256i pairs, __m256i sums)
{
    return _mm256_add_epi32(_mm256_madd_epi16(products, isw), _mm256_madd_epi16(pairs, sums));
}

/* Adds 255 times the outlier plane of a row to the totals of both halves. */
ALWAYS_INLINE void outliers_int4(const struct linear_job *job, uint32_t row, const uint8_t *panel,
                                 bool plain, __m256i total[HALVES])
{
    const struct act_outlier *o = act_outliers(job->act, row);
    const size_t run_bytes = plain ? INT4_PLAIN_RUN_BYTES : INT4_RUN_BYTES;
    __m256i plane[HALVES] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (uint32_t n = job->act->n_outliers[row]; n > 0; n--, o++) {
        const uint8_t *run = panel + o->group / 8 * run_bytes, *codes = run + o->group % 4 * 64;
        const __m128i shift = _mm_cvtsi32_si128((int)(o->group & 4));
        __m256i hi = _mm256_set1_epi32(o->hi),
                sums = _mm256_set1_epi32(o->in_high_half | (o->minus_8 & 0xFFFF));
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            __m256i pairs = pairs_int4(run, h, plain),
                    q = _mm256_and_si256(_mm256_srl_epi16(load256(codes + h * 32), shift),
                                         _mm256_set1_epi8(15));
            plane[h] = _mm256_add_epi32(
                plane[h], scale_int4(_mm256_maddubs_epi16(q, hi), both_isw(pairs), pairs, sums));
        }
    }
    for (int h = 0; h < HALVES; h++)
        total[h] =
            _mm256_add_epi32(total[h], _mm256_sub_epi32(_mm256_slli_epi32(plane[h], 8), plane[h]));
}

/* W of a group of columns of a panel in 16 bits, shared by the outliers of many rows. */
struct words {
    int16_t of[PANEL_ROWS][ACT_GROUP];
};

static void expand_int4(const struct weight_cpu *w, const uint8_t *panel, struct words *words)
{
    const bool plain = w->format == PACK_INT4_PLAIN;
    const uint8_t *run = panel;
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, run += int4_run_bytes(w), words += 8)
        for (int h = 0; h < HALVES; h++) {
            __m256i pairs = pairs_int4(run, h, plain), isw = both_isw(pairs),
                    ioff = both_isw(_mm256_srli_epi32(pairs, 16)),
                    rest = _mm256_sub_epi16(ioff, _mm256_slli_epi16(isw, 3));
            /* four outputs, a word per column: outputs 0, 1, 4, 5 and 2, 3, 6, 7 */
            __m256i isw_low = _mm256_unpacklo_epi32(isw, isw),
                    isw_high = _mm256_unpackhi_epi32(isw, isw),
                    rest_low = _mm256_unpacklo_epi32(rest, rest),
                    rest_high = _mm256_unpackhi_epi32(rest, rest);
            for (uint32_t g = 0; g < 8; g++) {
                __m256i q = codes_int4(run, g, h), zero = _mm256_setzero_si256(),
                        low = _mm256_add_epi16(
                            _mm256_mullo_epi16(_mm256_unpacklo_epi8(q, zero), isw_low), rest_low),
                        high = _mm256_add_epi16(
                            _mm256_mullo_epi16(_mm256_unpackhi_epi8(q, zero), isw_high), rest_high);
                __m256i *to = (__m256i *)(void *)words[g].of[h * LANES];
                _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
                _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
            }
        }
}

/* Does the work of outliers_int4() with W in 16 bits. */
ALWAYS_INLINE void outliers_words(const struct linear_job *job, uint32_t row,
                                  const struct words *words, __m256i total[HALVES])
{
    const struct act_outlier *o = act_outliers(job->act, row);
    __m256i plane[4];
    for (int i = 0; i < 4; i++)
        plane[i] = _mm256_setzero_si256();
    for (uint32_t n = job->act->n_outliers[row]; n > 0; n--, o++) {
        __m256i hi = _mm256_cvtepi8_epi16(_mm_set1_epi32(o->hi));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            plane[i] = _mm256_add_epi32(plane[i],
                                        _mm256_madd_epi16(load256(words[o->group].of[i * 4]), hi));
    }
    for (int h = 0; h < HALVES; h++) { /* from sums of two columns to one sum per output */
        __m256i sum =
            _mm256_permute4x64_epi64(_mm256_hadd_epi32(plane[2 * h], plane[2 * h + 1]), 0xD8);
        total[h] = _mm256_add_epi32(total[h], _mm256_sub_epi32(_mm256_slli_epi32(sum, 8), sum));
    }
}

/* Stores 8 totals of a row, up to the last output. */
ALWAYS_INLINE void put_int32(const struct linear_job *job, uint32_t row, uint32_t n, __m256i total)
{
    if (puts_floats(job, n))
        put_floats(job, row, n, _mm256_cvtepi32_ps(total));
    else
        put_int64(job, row, n, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(total)),
                  _mm256_cvtepi32_epi64(_mm256_extracti128_si256(total, 1)));
}

/* Weights that few rows read are bound by memory, so they are prefetched far ahead. */
enum { FAR_ROWS = 2, FAR_BYTES = 4096 };

/* words: NULL, or W of the panel in 16 bits. */
ALWAYS_INLINE void tile_int4(const struct linear_job *job, uint32_t row, uint32_t n, int n_rows,
                             bool plain, const struct words *words)
{
    const uint32_t n_runs = job->w->k_pad / RUN_K,
                   run_bytes = plain ? INT4_PLAIN_RUN_BYTES : INT4_RUN_BYTES;
    const uint8_t *panel = weight_panel(job->w, n / PANEL_ROWS), *run = panel;
    struct rows r = rows_of(job->act, row);
    __m256i total[TILE_ROWS][HALVES], products[TILE_ROWS][HALVES];
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++)
        total[m][0] = total[m][1] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n_runs; i++, run += run_bytes, next_run(&r)) {
#pragma GCC unroll 8
        for (uint32_t g = 0; g < 8; g++) {
            if (n_rows <= FAR_ROWS && g < 5)
                _mm_prefetch(run + FAR_BYTES + g * 64, _MM_HINT_T0);
            __m256i q[HALVES] = {codes_int4(run, g, 0), codes_int4(run, g, 1)};
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++) {
                __m256i a = broadcast4(row_lo(&r, m) + g * 4);
#pragma GCC unroll 2
                for (int h = 0; h < HALVES; h++) {
                    __m256i product = _mm256_maddubs_epi16(q[h], a);
                    products[m][h] = g == 0 ? product : add16(products[m][h], product);
                }
            }
        }
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            __m256i pairs = pairs_int4(run, h, plain), isw = both_isw(pairs);
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++)
                total[m][h] =
                    _mm256_add_epi32(total[m][h], scale_int4(products[m][h], isw, pairs,
                                                             broadcast4(&row_sums(&r, m)->pair)));
        }
    }
#pragma GCC unroll 1
    for (int m = 0; m < n_rows; m++) {
        if (words != NULL && job->act->n_outliers[row + (uint32_t)m] > 0)
            outliers_words(job, row + (uint32_t)m, words, total[m]);
        else if (job->act->n_outliers[row + (uint32_t)m] > 0)
            outliers_int4(job, row + (uint32_t)m, panel, plain, total[m]);
        for (int h = 0; h < HALVES; h++)
            put_int32(job, row + (uint32_t)m, n + (uint32_t)h * LANES, total[m][h]);
    }
}

/* Loads four signed columns of 8 outputs from codes stored as q + 128. */
ALWAYS_INLINE __m256i codes_int8(const uint8_t *codes)
{
    return _mm256_xor_si256(load256(codes), _mm256_set1_epi8(-128));
}

/* Returns D of a group of four columns. */
ALWAYS_INLINE __m256i dot_int8(__m256i q, __m256i abs_q, __m256i a)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(abs_q, _mm256_sign_epi8(a, q)),
                             _mm256_set1_epi16(1));
}

/* Adds 255 times the outlier plane of a row to the totals of 8 outputs of a panel: two halves in 64
 * bits. */
static void outliers_int8(const struct linear_job *job, uint32_t row, const uint8_t *panel,
                          uint32_t lane, __m256i total[2])
{
    const int16_t *scales = panel_scales(job->w, panel) + lane;
    const struct act_outlier *o = act_outliers(job->act, row);
    __m256i plane = _mm256_setzero_si256();
    for (uint32_t i = job->act->n_outliers[row]; i > 0; i--, o++) {
        __m256i q = codes_int8(panel + (size_t)o->group * 64 + lane * 4),
                d = dot_int8(q, _mm256_abs_epi8(q), _mm256_set1_epi32(o->hi));
        __m256i isw = _mm256_cvtepi16_epi32(_mm_loadu_si128(
            (const __m128i *)(const void *)(scales + (size_t)(o->group / 8) * PANEL_ROWS)));
        plane = _mm256_add_epi32(plane, _mm256_mullo_epi32(d, isw));
    }
    for (int i = 0; i < 2; i++) {
        __m256i p = _mm256_cvtepi32_epi64(i == 0 ? _mm256_castsi256_si128(plane)
                                                 : _mm256_extracti128_si256(plane, 1));
        total[i] = _mm256_add_epi64(total[i], _mm256_sub_epi64(_mm256_slli_epi64(p, 8), p));
    }
}

/* Stores T = low + 256·high of 8 outputs, with outliers. */
static void put_int8(const struct linear_job *job, uint32_t row, uint32_t n, __m256i low,
                     __m256i high)
{
    const uint8_t *panel = weight_panel(job->w, n / PANEL_ROWS);
    __m256i total[2] = {
        _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(low)),
                         _mm256_slli_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(high)), 8)),
        _mm256_add_epi64(
            _mm256_cvtepi32_epi64(_mm256_extracti128_si256(low, 1)),
            _mm256_slli_epi64(_mm256_cvtepi32_epi64(_mm256_extracti128_si256(high, 1)), 8)),
    };
    if (job->act->n_outliers[row] > 0)
        outliers_int8(job, row, panel, n % PANEL_ROWS, total);
    put_int64(job, row, n, total[0], total[1]);
}

ALWAYS_INLINE void tile_int8(const struct linear_job *job, uint32_t row, uint32_t n, int n_rows)
{
    const struct weight_cpu *w = job->w;
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS), *run = panel;
    const int16_t *scales = panel_scales(w, panel);
    struct rows r = rows_of(job->act, row);
    __m256i low[TILE_ROWS_INT8][HALVES], high[TILE_ROWS_INT8][HALVES], d[TILE_ROWS_INT8][HALVES];
#pragma GCC unroll 4
    for (int m = 0; m < n_rows; m++)
        for (int h = 0; h < HALVES; h++)
            low[m][h] = high[m][h] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, run += INT8_RUN_BYTES, next_run(&r)) {
#pragma GCC unroll 8
        for (uint32_t g = 0; g < 8; g++) {
            if (n_rows <= FAR_ROWS)
                _mm_prefetch(run + FAR_BYTES + g * 64, _MM_HINT_T0);
            __m256i q[HALVES] = {codes_int8(run + g * 64), codes_int8(run + g * 64 + 32)};
            __m256i abs_q[HALVES] = {_mm256_abs_epi8(q[0]), _mm256_abs_epi8(q[1])};
#pragma GCC unroll 4
            for (int m = 0; m < n_rows; m++) {
                __m256i a = broadcast4(row_lo(&r, m) + g * 4);
#pragma GCC unroll 2
                for (int h = 0; h < HALVES; h++) {
                    __m256i group = dot_int8(q[h], abs_q[h], a);
                    d[m][h] = g == 0 ? group : _mm256_add_epi32(d[m][h], group);
                    __asm__("" : "+x"(d[m][h]));
                }
            }
        }
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            __m256i isw = load_words(scales + (size_t)i * PANEL_ROWS + (size_t)h * LANES);
#pragma GCC unroll 4
            for (int m = 0; m < n_rows; m++) {
                __m256i byte = _mm256_and_si256(d[m][h], _mm256_set1_epi32(255));
                low[m][h] = _mm256_add_epi32(low[m][h], _mm256_madd_epi16(byte, isw));
                high[m][h] = _mm256_add_epi32(
                    high[m][h], _mm256_madd_epi16(_mm256_srai_epi32(d[m][h], 8), isw));
            }
        }
    }
#pragma GCC unroll 1
    for (int m = 0; m < n_rows; m++)
        for (int h = 0; h < HALVES; h++)
            put_int8(job, row + (uint32_t)m, n + (uint32_t)h * LANES, low[m][h], high[m][h]);
}

#include "kernels/cpu/linear/linear_wide_avx2.h"

/* From this number of rows, expand_int4() of a panel saves more time than it takes. */
enum { WORDS_MIN_ROWS = 24 };
_Static_assert((size_t)INT4_MAX_K / ACT_GROUP * sizeof(struct words) <= STREAM_SCRATCH_BYTES,
               "words of the widest panel must fit the scratch of a member");

ALWAYS_INLINE void linear_int4(const struct linear_job *job, const struct linear_share *share,
                               bool plain)
{
    for (uint32_t n = share->n_begin; n < share->n_end; n += PANEL_ROWS) {
        struct words *words = NULL;
        uint32_t row = share->row_begin;
        if (share->row_end - row >= WORDS_MIN_ROWS) {
            words = share->scratch;
            expand_int4(job->w, weight_panel(job->w, n / PANEL_ROWS), words);
        }
        for (; row + TILE_ROWS <= share->row_end; row += TILE_ROWS)
            tile_int4(job, row, n, TILE_ROWS, plain, words);
        if (row + 4 <= share->row_end) {
            tile_int4(job, row, n, 4, plain, words);
            row += 4;
        }
        if (row + 2 <= share->row_end) {
            tile_int4(job, row, n, 2, plain, words);
            row += 2;
        }
        if (row < share->row_end)
            tile_int4(job, row, n, 1, plain, words);
    }
}

static void linear_int8(const struct linear_job *job, const struct linear_share *share)
{
    uint32_t wide_end = wide_rows_end(share);
    if (wide_end > share->row_begin)
        linear_wide(job, share, wide_end);
    for (uint32_t n = share->n_begin; n < share->n_end; n += PANEL_ROWS) {
        uint32_t row = wide_end;
        for (; row + TILE_ROWS_INT8 <= share->row_end; row += TILE_ROWS_INT8)
            tile_int8(job, row, n, TILE_ROWS_INT8);
        if (row + 2 <= share->row_end) {
            tile_int8(job, row, n, 2);
            row += 2;
        }
        if (row < share->row_end)
            tile_int8(job, row, n, 1);
    }
}

void linear_int_avx2(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum pack_format)job->w->format) {
    case PACK_INT4:
        linear_int4(job, share, false);
        break;
    case PACK_INT4_PLAIN:
        linear_int4(job, share, true);
        break;
    case PACK_INT8:
        linear_int8(job, share);
        break;
    default:
        linear_super_avx2(job, share);
        break;
    }
}
