/* linear_wide_avx2.h: PACK_INT8 for many rows, part of linear_int_avx2.c. W = q·isw fits 16 bits
 * (|W| ≤ 32640), and so do activations. So a vpmaddwd computes two finished products per lane, and
 * no scale is applied in between. With four vector instructions per cycle this gives 64 operations
 * per cycle, the same as with bytes. Columns are processed in pieces of WIDE_K, whose sums fit 32
 * bits. W of a piece of a panel is computed once for up to WIDE_ROWS rows and stays in L1. */
#pragma once

enum {
    WIDE_K = 512,      /* |Σ| ≤ 512·127·32640 < 2^31 */
    WIDE_ROWS = 96,    /* rows that share W */
    WIDE_MIN_ROWS = 6, /* from this number of rows this way is faster */
    WIDE_PANELS = 8,   /* panels that share 16-bit activations */
};

/* Part of a member's scratch. */
struct wide_scratch {
    int16_t acts[WIDE_ROWS][WIDE_K];
    int16_t weights[WIDE_K / 2][PANEL_ROWS][2];
    int64_t totals[WIDE_PANELS][WIDE_ROWS][PANEL_ROWS];
    int32_t planes[WIDE_PANELS][WIDE_ROWS][PANEL_ROWS]; /* Σ W·hi: 32640·29.5·K/127.5 < 2^31 */
    uint32_t outliers[WIDE_ROWS][2]; /* first outlier of the piece, first after it */
};
_Static_assert(sizeof(struct wide_scratch) <= STREAM_SCRATCH_BYTES, "a member has no more");
_Static_assert(WIDE_K % RUN_K == 0 && (int64_t)WIDE_K * 127 * 32640 < INT32_MAX, "sums overflow");

/* Returns the end of the rows to compute this way. Up to five last rows are left, because they
 * would need their own tiles. */
static uint32_t wide_rows_end(const struct linear_share *share)
{
    uint32_t n = share->row_end - share->row_begin;
    return n < WIDE_MIN_ROWS ? share->row_begin : share->row_end - n % TILE_ROWS;
}

/* Widens columns [k, k + n_k) of the rows from `row` on to 16 bits, and finds their outliers. Calls
 * must go through the pieces in order. */
static void wide_acts(struct wide_scratch *s, const struct act_cpu *act, uint32_t row,
                      uint32_t n_rows, uint32_t k, uint32_t n_k)
{
    for (uint32_t m = 0; m < n_rows; m++) {
        const struct act_outlier *outliers = act_outliers(act, row + m);
        uint32_t end = s->outliers[m][0] = k == 0 ? 0 : s->outliers[m][1];
        while (end < act->n_outliers[row + m] && outliers[end].group * ACT_GROUP < k + n_k)
            end++;
        s->outliers[m][1] = end;
        const int8_t *lo = act_lo(act, row + m) + k;
        for (uint32_t i = 0; i < n_k; i += 16)
            _mm256_storeu_si256(
                (__m256i *)(void *)(s->acts[m] + i),
                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(lo + i))));
    }
}

/* Computes W of the same columns of a panel: pairs of columns, a dword per output. */
static void wide_weights(struct wide_scratch *s, const struct weight_cpu *w, const uint8_t *panel,
                         uint32_t k, uint32_t n_k)
{
    const __m256i first = _mm256_set_epi8(13, -1, 12, -1, 9, -1, 8, -1, 5, -1, 4, -1, 1, -1, 0, -1,
                                          13, -1, 12, -1, 9, -1, 8, -1, 5, -1, 4, -1, 1, -1, 0, -1),
                  second =
                      _mm256_set_epi8(15, -1, 14, -1, 11, -1, 10, -1, 7, -1, 6, -1, 3, -1, 2, -1,
                                      15, -1, 14, -1, 11, -1, 10, -1, 7, -1, 6, -1, 3, -1, 2, -1);
    for (uint32_t i = 0; i < n_k / RUN_K; i++) {
        uint32_t run = k / RUN_K + i;
        const uint8_t *codes = panel + (size_t)run * INT8_RUN_BYTES;
        const int16_t *scales = panel_scales(w, panel) + (size_t)run * PANEL_ROWS;
        for (uint32_t h = 0; h < HALVES; h++) {
            __m256i isw = both_isw(load_words(scales + (size_t)h * LANES));
            for (uint32_t g = 0; g < 8; g++) {
                __m256i q = codes_int8(codes + g * 64 + h * 32),
                        even = _mm256_srai_epi16(_mm256_shuffle_epi8(q, first), 8),
                        odd = _mm256_srai_epi16(_mm256_shuffle_epi8(q, second), 8);
                int16_t(*to)[PANEL_ROWS][2] = &s->weights[i * (RUN_K / 2) + g * 2];
                _mm256_storeu_si256((__m256i *)(void *)to[0][h * LANES],
                                    _mm256_mullo_epi16(even, isw));
                _mm256_storeu_si256((__m256i *)(void *)to[1][h * LANES],
                                    _mm256_mullo_epi16(odd, isw));
            }
        }
    }
}

/* Adds the products of n_k columns to `totals` (of a panel, from the tile's first row on). */
ALWAYS_INLINE void wide_tile(const struct wide_scratch *s, uint32_t m0, uint32_t n_k,
                             int64_t totals[][PANEL_ROWS])
{
    const int16_t *acts = s->acts[m0], *third = s->acts[m0 + 3];
    __m256i sum[TILE_ROWS][HALVES];
#pragma GCC unroll 8
    for (int m = 0; m < TILE_ROWS; m++)
        sum[m][0] = sum[m][1] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n_k / 2; i++, acts += 2, third += 2) {
        __m256i w[HALVES] = {load256(s->weights[i][0]), load256(s->weights[i][LANES])};
#pragma GCC unroll 8
        for (int m = 0; m < TILE_ROWS; m++) {
            __m256i a = broadcast4(m < 3 ? acts + m * WIDE_K : third + (m - 3) * WIDE_K);
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                sum[m][h] = _mm256_add_epi32(sum[m][h], _mm256_madd_epi16(w[h], a));
                __asm__("" : "+x"(sum[m][h]));
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < TILE_ROWS; m++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m256i *total = (__m256i *)(void *)&totals[m][i * 4];
            __m128i four = i % 2 == 0 ? _mm256_castsi256_si128(sum[m][i / 2])
                                      : _mm256_extracti128_si256(sum[m][i / 2], 1);
            _mm256_storeu_si256(total,
                                _mm256_add_epi64(load256(total), _mm256_cvtepi32_epi64(four)));
        }
}

/* Adds the products of row m's outliers, in columns from k on, to `plane`. */
static void wide_outliers(const struct wide_scratch *s, const struct act_outlier *outliers,
                          uint32_t m, uint32_t k, int32_t plane[PANEL_ROWS])
{
    __m256i sum[HALVES] = {load256(plane), load256(plane + LANES)};
    for (uint32_t i = s->outliers[m][0]; i < s->outliers[m][1]; i++) {
        const struct act_outlier *o = outliers + i;
        const int16_t(*w)[PANEL_ROWS][2] = &s->weights[(o->group * ACT_GROUP - k) / 2];
        __m256i hi = _mm256_cvtepi8_epi16(_mm_set1_epi32(o->hi)),
                first = _mm256_shuffle_epi32(hi, 0xA0), second = _mm256_shuffle_epi32(hi, 0xF5);
        for (uint32_t h = 0; h < HALVES; h++)
            sum[h] = _mm256_add_epi32(
                sum[h], _mm256_add_epi32(_mm256_madd_epi16(load256(w[0][h * LANES]), first),
                                         _mm256_madd_epi16(load256(w[1][h * LANES]), second)));
    }
    for (uint32_t h = 0; h < HALVES; h++)
        _mm256_storeu_si256((__m256i *)(void *)(plane + h * LANES), sum[h]);
}

static void wide_put(const struct linear_job *job, uint32_t row, uint32_t n,
                     const int64_t totals[PANEL_ROWS], const int32_t plane[PANEL_ROWS])
{
    __m256i total[4];
    for (uint32_t i = 0; i < 4; i++) {
        __m256i p =
            _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(const void *)(plane + i * 4)));
        total[i] =
            _mm256_add_epi64(load256(totals + i * 4), _mm256_sub_epi64(_mm256_slli_epi64(p, 8), p));
    }
    put_int64(job, row, n, total[0], total[1]);
    put_int64(job, row, n + LANES, total[2], total[3]);
}

/* Computes n_panels panels from output n on, for n_rows rows, a multiple of TILE_ROWS. */
static void wide_block(const struct linear_job *job, struct wide_scratch *s, uint32_t row,
                       uint32_t n_rows, uint32_t n, uint32_t n_panels)
{
    const struct weight_cpu *w = job->w;
    for (uint32_t p = 0; p < n_panels; p++) {
        memset(s->totals[p], 0, n_rows * sizeof(s->totals[p][0]));
        memset(s->planes[p], 0, n_rows * sizeof(s->planes[p][0]));
    }
    for (uint32_t k = 0; k < w->k_pad; k += WIDE_K) {
        uint32_t n_k = w->k_pad - k < WIDE_K ? w->k_pad - k : WIDE_K;
        wide_acts(s, job->act, row, n_rows, k, n_k);
        for (uint32_t p = 0; p < n_panels; p++) {
            wide_weights(s, w, weight_panel(w, n / PANEL_ROWS + p), k, n_k);
            for (uint32_t m = 0; m < n_rows; m += TILE_ROWS)
                wide_tile(s, m, n_k, &s->totals[p][m]);
            for (uint32_t m = 0; m < n_rows; m++)
                if (s->outliers[m][0] < s->outliers[m][1])
                    wide_outliers(s, act_outliers(job->act, row + m), m, k, s->planes[p][m]);
        }
    }
    for (uint32_t p = 0; p < n_panels; p++)
        for (uint32_t m = 0; m < n_rows; m++)
            wide_put(job, row + m, n + p * PANEL_ROWS, s->totals[p][m], s->planes[p][m]);
}

/* Computes the rows of a share up to row_end, the result of wide_rows_end(). */
static void linear_wide(const struct linear_job *job, const struct linear_share *share,
                        uint32_t row_end)
{
    struct wide_scratch *s = share->scratch;
    for (uint32_t row = share->row_begin; row < row_end; row += WIDE_ROWS) {
        uint32_t n_rows = row_end - row < WIDE_ROWS ? row_end - row : WIDE_ROWS;
        for (uint32_t n = share->n_begin; n < share->n_end; n += WIDE_PANELS * PANEL_ROWS) {
            uint32_t left = (share->n_end - n + PANEL_ROWS - 1) / PANEL_ROWS;
            wide_block(job, s, row, n_rows, n, left < WIDE_PANELS ? left : WIDE_PANELS);
        }
    }
}
