/* linear_super_impl.h in AVX-512 VNNI: 16 outputs in the 16 dword lanes. A tile is up to 6 rows × 2
 * panels. */
#include <immintrin.h>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/stream_cpu.h"

typedef __m512i vi;
#define VI(op)    _mm512_##op
#define VI_SI(op) _mm512_##op##_si512

/* clang-format off */
#include "kernels/cpu/vec/vec_int.h"
/* clang-format on */

ALWAYS_INLINE vi vi_broadcast128(__m128i x)
{
    return _mm512_broadcast_i32x4(x);
}
ALWAYS_INLINE vi vi_load_i8(const void *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
ALWAYS_INLINE vi vi_load_i16(const int16_t *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
ALWAYS_INLINE vi vi_load_u16(const int16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* Returns acc + the products of 16-bit pairs. */
ALWAYS_INLINE vi vi_madd16(vi acc, vi a, vi b)
{
    return _mm512_dpwssd_epi32(acc, a, b);
}
/* Returns acc + the products of four unsigned codes and four signed bytes. In assembly, because gcc
 * 12 copies and stores accumulators around the intrinsic. */
ALWAYS_INLINE vi vi_dot(vi acc, vi codes, vi a)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(a));
    return acc;
}
#define vi_dot_bytes vi_dot

/* Stores 16 finished totals of a row from output n on. */
ALWAYS_INLINE void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even,
                             vi odd);

/* clang-format off */
#include "kernels/cpu/linear/linear_super_impl.h"
/* clang-format on */

/* Adds scale·D of sub-block h of a run (32 columns, or 16) to s. */
ALWAYS_INLINE void super_sub_block(const struct super_place *a, const uint8_t *const codes[],
                                   const uint8_t *const scales[], uint8_t *const keep[], uint32_t h,
                                   struct super_form f, unsigned code_bits, int n_rows,
                                   int n_panels, vi s[][MAX_PANELS])
{
    const uint32_t step = f.subs == 2 ? 4 : 8;
    vi d[MAX_TILE_ROWS][MAX_PANELS];
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        const struct act_sums *sums = super_sums(a, m);
        vi start = super_start(f.subs == 2 ? sums->halves_minus_8[h] : sums->minus_8, f.zero);
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++)
            d[m][p] = start;
    }
#pragma GCC unroll 8
    for (uint32_t g = h * step; g < (h + 1) * step; g++) {
        vi w[MAX_PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++) {
            if (code_bits == f.bits && g < f.bits)
                super_fetch(codes[p] + g * 64, 64);
            w[p] = super_codes(codes[p], f, code_bits, g);
            if (keep != NULL)
                vi_store(keep[p] + g * 64, w[p]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++) {
            vi x = vi_set1(four_at(super_lo(a, m) + g * 4));
#pragma GCC unroll 2
            for (int p = 0; p < n_panels; p++)
                d[m][p] = vi_dot(d[m][p], w[p], x);
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++) {
        vi scale = super_is_direct(f) ? vi_load_i16((const int16_t *)(const void *)scales[p])
                                      : vi_load_i8(scales[p] + 16 * h);
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
            s[m][p] = vi_add32(s[m][p], vi_mul32(d[m][p], scale));
    }
}

ALWAYS_INLINE void super_run(const struct super_place *a, const uint8_t *const codes[],
                             const uint8_t *const scales[], uint8_t *const keep[],
                             struct super_form f, unsigned code_bits, int n_rows, int n_panels,
                             vi s[][MAX_PANELS])
{
    const uint32_t n_halves = f.subs == 2 ? 2 : 1;
#pragma GCC unroll 2
    for (uint32_t h = 0; h < n_halves; h++)
        super_sub_block(a, codes, scales, keep, h, f, code_bits, n_rows, n_panels, s);
}

enum {
    EXPAND_ROWS = 9
}; /* from this number of rows, codes and scales are unpacked once for all rows */
_Static_assert(2 * (SUPER_MAX_K / RUN_K) * (INT8_RUN_BYTES + 256) <= STREAM_SCRATCH_BYTES,
               "two unpacked panels of the widest weight must fit the scratch of a member");

ALWAYS_INLINE void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even,
                             vi odd)
{
    uint32_t left = job->w->base.n_rows - n;
    __mmask16 mask = (__mmask16)(left >= PANEL_ROWS ? 0xFFFF : (1U << left) - 1);
    if (job->y == NULL) {
        vi low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32)),
           high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 16),
                                          _mm512_slli_epi64(_mm512_srli_epi64(odd, 16), 32));
        _mm512_mask_storeu_epi32(job->sums + row * job->sums_stride + n, mask,
                                 _mm512_and_si512(low, _mm512_set1_epi32(0xFFFF)));
        _mm512_mask_storeu_epi32(job->high + row * job->y_stride + n, mask, high);
        return;
    }
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    __m512 total = _mm512_permutex2var_ps(_mm512_castps256_ps512(_mm512_cvtepi64_ps(even)), order,
                                          _mm512_castps256_ps512(_mm512_cvtepi64_ps(odd)));
    __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(weight_units(job->w) + n),
                                 _mm512_set1_ps(job->act->scale[row]));
    _mm512_mask_storeu_ps(job->y + row * job->y_stride + n, mask, _mm512_mul_ps(total, scale));
}

/* Unpacks the scales and offsets of a panel into the layout of src->pairs. */
ALWAYS_INLINE void expand_scales(const struct super_source *src, struct super_form f,
                                 uint32_t n_runs, const uint8_t *super, uint8_t *dst)
{
    const vi bits = vi_set1((1 << SUPER_LOW_BITS) - 1);
    const uint32_t n_halves = f.subs == 2 ? 2 : 1;
    for (uint32_t i = 0; i < n_runs; super += src->scale_super) {
        const int16_t *isd = (const int16_t *)(const void *)super;
        for (uint32_t r = 0; r < src->runs && i < n_runs; r++, i++)
            for (uint32_t h = 0; h < n_halves; h++, dst += 128) {
                uint32_t sub = r * f.subs + h;
                vi scale = vi_load_i16(isd), offset = vi_zero();
                scale = vi_mul32(scale, vi_load_i8(super + src->at.scales + 16 * sub));
                if (f.offsets) {
                    vi mins = vi_loadu(super + src->at.mins + sub / 4 * 64);
                    mins = vi_and(vi_srl32(mins, 8 * super_min_byte(sub)), vi_set1(255));
                    offset = vi_mul32(vi_load_i16(isd + PANEL_ROWS), mins);
                }
                vi_store(dst, vi_or(vi_and(scale, bits), vi_slli32(vi_and(offset, bits), 16)));
                scale = vi_and(vi_srai32(scale, SUPER_LOW_BITS), vi_set1(0xFFFF));
                vi_store(dst + 64, vi_or(scale, vi_slli32(vi_srai32(offset, SUPER_LOW_BITS), 16)));
            }
    }
}

/* Computes panels n and next. They may be the same panel, which is then computed twice. */
ALWAYS_INLINE void linear_panels(const struct linear_job *job, const struct linear_share *share,
                                 uint32_t n, uint32_t next, struct super_form f)
{
    struct super_source src = super_packed(job->w, f, n, next);
    uint32_t n_runs = job->w->k_pad / RUN_K;
    if (f.bits == 8 || share->row_end - share->row_begin < EXPAND_ROWS) {
        super_few_rows(job, share, &src, f, MAX_PANELS);
        return;
    }
    uint8_t *pairs = (uint8_t *)share->scratch + 2 * (size_t)n_runs * INT8_RUN_BYTES;
    for (int p = 0; p < MAX_PANELS && !super_is_direct(f) && f.table == SUPER_NO_TABLE; p++) {
        expand_scales(&src, f, n_runs, src.packed[p], pairs);
        src.pairs[p] = pairs;
        pairs += (size_t)n_runs * (f.subs == 2 ? 256 : 128);
    }
    super_rows(job, share, &src, f, MAX_PANELS);
}

/* Takes a panel from each half of the share: two long streams (linear_int_avx512.c). */
ALWAYS_INLINE void linear_form(const struct linear_job *job, const struct linear_share *share,
                               struct super_form f)
{
    uint32_t n = share->n_begin;
    if (share->row_end - share->row_begin == 1) {
        for (; n < share->n_end; n += PANEL_ROWS) {
            struct super_source src = super_packed(job->w, f, n, n);
            super_row(job, share, &src, f);
        }
        return;
    }
    uint32_t n_panels = (share->n_end - n + PANEL_ROWS - 1) / PANEL_ROWS,
             apart = n_panels / 2 * PANEL_ROWS;
    for (uint32_t end = n + apart; n < end; n += PANEL_ROWS)
        linear_panels(job, share, n, n + apart, f);
    if (n_panels % 2 == 1)
        linear_panels(job, share, n + apart, n + apart, f);
}

SUPER_FUNCTION(DTYPE_Q8_0)
SUPER_FORMS(SUPER_FUNCTION)

void linear_super_avx512(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum dtype)job->w->base.source) {
        SUPER_CASE(DTYPE_Q8_0)
        SUPER_FORMS(SUPER_CASE)
    default:
        break;
    }
}
