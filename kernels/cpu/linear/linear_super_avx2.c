/* linear_super_impl.h in AVX2: 8 outputs in the 8 dword lanes, half a panel. Codes of IQ4 are
 * bytes. Their low and high 4 bits are multiplied apart, and eight groups of columns add up in 16
 * bits (8·15·127·2 < 2^15). Other codes have at most 6 bits. So products of two groups of columns
 * add up in 16 bits (2·63·127·2 < 2^15). With codes of 5 bits or fewer, four groups do (4·31·127·2
 * < 2^15). Then a vpmaddwd with (scale, scale) widens the sum to 32 bits. PACK_INT8 has its own
 * kernel. */
#include <immintrin.h>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/linear/linear_put_avx2.h"

typedef __m256i vi;
#define VI(op)    _mm256_##op
#define VI_SI(op) _mm256_##op##_si256

/* clang-format off */
#include "kernels/cpu/vec/vec_int.h"
/* clang-format on */

ALWAYS_INLINE vi vi_broadcast128(__m128i x)
{
    return _mm256_broadcastsi128_si256(x);
}
ALWAYS_INLINE vi vi_load_i8(const void *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
ALWAYS_INLINE vi vi_load_i16(const int16_t *p)
{
    return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
ALWAYS_INLINE vi vi_load_u16(const int16_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
/* Returns acc + the products of 16-bit pairs. */
ALWAYS_INLINE vi vi_madd16(vi acc, vi a, vi b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
/* Returns acc + the products of four unsigned codes and four signed bytes. */
ALWAYS_INLINE vi vi_dot(vi acc, vi codes, vi a)
{
    vi products = _mm256_maddubs_epi16(codes, a);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}

/* Returns the low or the high 4 bits of each byte. */
ALWAYS_INLINE vi vi_nibbles(vi codes, unsigned high)
{
    return vi_and(high ? vi_srl16(codes, 4) : codes, vi_set1_8(15));
}
/* vi_dot() of codes up to 255. */
ALWAYS_INLINE vi vi_dot_bytes(vi acc, vi codes, vi a)
{
    vi low = _mm256_maddubs_epi16(vi_nibbles(codes, 0), a),
       high = _mm256_maddubs_epi16(vi_nibbles(codes, 1), a);
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
}

static void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even, vi odd);

/* clang-format off */
#include "kernels/cpu/linear/linear_super_impl.h"
/* clang-format on */

enum { LANES = 8 };

/* Stores the totals of the even outputs and of the odd outputs, interleaved as floats 0 and 1, 2
 * and 3 … */
static void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even, vi odd)
{
    if (puts_floats(job, n)) {
        __m128 e = float_of_int64(even), o = float_of_int64(odd);
        put_floats(job, row, n, _mm256_set_m128(_mm_unpackhi_ps(e, o), _mm_unpacklo_ps(e, o)));
        return;
    }
    __m256i low = _mm256_unpacklo_epi64(even, odd), high = _mm256_unpackhi_epi64(even, odd);
    put_int64(job, row, n, _mm256_permute2x128_si256(low, high, 0x20),
              _mm256_permute2x128_si256(low, high, 0x31));
}

/* Returns (scale, scale) of sub-block h of 8 outputs. */
ALWAYS_INLINE vi super_scales(const uint8_t *scales, struct super_form f, uint32_t h)
{
    vi scale = super_is_direct(f) ? vi_load_u16((const int16_t *)(const void *)scales)
                                  : vi_and(vi_load_i8(scales + 16 * h), vi_set1(0xFFFF));
    return vi_or(scale, vi_slli32(scale, 16));
}

/* Computes s −= scale·zero·A of a run. With halves: (scale, scale') times (A, A'), which are
 * adjacent. Whole: (zero/8·scale, 0) times (−8·A, A), or (scale, −4·scale) for a zero of 12. */
ALWAYS_INLINE void super_zero(const struct super_place *a, struct super_form f, const vi scale[2],
                              int n_rows, vi s[][MAX_PANELS])
{
    const vi low = vi_set1(0xFFFF), halves = VI(blend_epi16)(scale[0], scale[1], 0xAA),
             minus_4 = VI(sub_epi16)(vi_zero(), VI(slli_epi16)(scale[0], 2));
    const vi scaled = f.subs == 2    ? VI(slli_epi16)(halves, f.zero == 32 ? 5 : 2)
                      : f.zero == 12 ? VI(blend_epi16)(scale[0], minus_4, 0xAA)
                                     : VI(slli_epi16)(vi_and(scale[0], low), f.zero == 128 ? 4 : 1);
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++)
        if (f.subs == 2)
            s[m][0] = vi_sub32(
                s[m][0],
                VI(madd_epi16)(scaled, vi_set1(four_at(a->shorts + (size_t)m * a->short_stride))));
        else
            s[m][0] = vi_madd16(s[m][0], scaled, vi_set1(super_sums(a, m)->pair));
}

ALWAYS_INLINE void super_run(const struct super_place *a, const uint8_t *const codes[],
                             const uint8_t *const scales[], uint8_t *const keep[],
                             struct super_form f, unsigned code_bits, int n_rows, int n_panels,
                             vi s[][MAX_PANELS])
{
    const bool bytes = f.table == SUPER_IQ4;
    const uint32_t batch = bytes ? 8 : f.bits == 6 ? 2 : 4, n_passes = bytes ? 2 : 1;
    const vi scale[2] = {super_scales(scales[0], f, 0),
                         f.subs == 2 ? super_scales(scales[0], f, 1) : vi_zero()};
    (void)n_panels; /* half a panel */
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8 * n_passes; i += batch) {
        const uint32_t first = i % 8, pass = i / 8; /* pass 1: the high 4 bits of bytes */
        vi products[MAX_TILE_ROWS];
#pragma GCC unroll 8
        for (uint32_t g = first; g < first + batch; g++) {
            if (code_bits == f.bits && g < f.bits && pass == 0)
                super_fetch(codes[0] + g * 64, 64);
            vi w = super_codes(codes[0], f, code_bits, g);
            if (keep != NULL && pass == 0)
                vi_store(keep[0] + g * 64, w);
            if (bytes)
                w = vi_nibbles(w, pass);
#pragma GCC unroll 8
            for (int m = 0; m < n_rows; m++) {
                vi product = VI(maddubs_epi16)(w, vi_set1(four_at(super_lo(a, m) + g * 4)));
                products[m] = g == first ? product : VI(add_epi16)(products[m], product);
                __asm__("" : "+x"(products[m]));
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
            s[m][0] = vi_madd16(s[m][0], products[m],
                                pass == 1 ? VI(slli_epi16)(scale[0], 4)
                                          : scale[f.subs == 2 ? first / 4 : 0]);
    }
    if (f.zero != 0)
        super_zero(a, f, scale, n_rows, s);
}

ALWAYS_INLINE void linear_form(const struct linear_job *job, const struct linear_share *share,
                               struct super_form f)
{
    for (uint32_t n = share->n_begin; n < share->n_end; n += LANES) {
        struct super_source src = super_packed(job->w, f, n, n);
        if (share->row_end - share->row_begin == 1)
            super_row(job, share, &src, f);
        else if (share->row_end - share->row_begin <= MAX_TILE_ROWS)
            super_few_rows(job, share, &src, f, 1);
        else
            super_rows(job, share, &src, f, 1);
    }
}

SUPER_FORMS(SUPER_FUNCTION)

void linear_super_avx2(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum dtype)job->w->base.source) {
        SUPER_FORMS(SUPER_CASE)
    default:
        break;
    }
}
