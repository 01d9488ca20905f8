/* linear_super_impl.h in AVX2: 8 outputs in the 8 dword lanes, half a panel. Codes have at most 6
 * bits, so that vpmaddubsw does not saturate (63·127·2); PACK_INT8 has its own kernel. */
#include <immintrin.h>

#include "kernels/cpu/inner.h"

typedef __m256i vi;

ALWAYS_INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
ALWAYS_INLINE vi vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
ALWAYS_INLINE vi vi_set1_8(char x)
{
    return _mm256_set1_epi8(x);
}
ALWAYS_INLINE vi vi_loadu(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
ALWAYS_INLINE vi vi_load_i8(const void *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
ALWAYS_INLINE vi vi_load_i16(const int16_t *p)
{
    return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
ALWAYS_INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
ALWAYS_INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
ALWAYS_INLINE vi vi_srl16(vi a, unsigned n)
{
    return _mm256_srl_epi16(a, _mm_cvtsi32_si128((int)n));
}
ALWAYS_INLINE vi vi_sll16(vi a, unsigned n)
{
    return _mm256_sll_epi16(a, _mm_cvtsi32_si128((int)n));
}
ALWAYS_INLINE vi vi_srl32(vi a, unsigned n)
{
    return _mm256_srl_epi32(a, _mm_cvtsi32_si128((int)n));
}
#define vi_srai32(a, n) _mm256_srai_epi32(a, n)
#define vi_slli32(a, n) _mm256_slli_epi32(a, n)
#define vi_slli64(a, n) _mm256_slli_epi64(a, n)
/* The odd dwords where the even ones are. */
ALWAYS_INLINE vi vi_srl64_32(vi a)
{
    return _mm256_srli_epi64(a, 32);
}
ALWAYS_INLINE vi vi_add32(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
ALWAYS_INLINE vi vi_add64(vi a, vi b)
{
    return _mm256_add_epi64(a, b);
}
ALWAYS_INLINE vi vi_sub64(vi a, vi b)
{
    return _mm256_sub_epi64(a, b);
}
ALWAYS_INLINE vi vi_mul32(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}
/* Products of the even dwords, signed, in 64 bits. */
ALWAYS_INLINE vi vi_mul64(vi a, vi b)
{
    return _mm256_mul_epi32(a, b);
}
/* acc + the products of 16-bit pairs. */
ALWAYS_INLINE vi vi_madd16(vi acc, vi a, vi b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
/* acc + the products of four unsigned codes and four signed bytes. */
ALWAYS_INLINE vi vi_dot(vi acc, vi codes, vi a)
{
    vi products = _mm256_maddubs_epi16(codes, a);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}

/* 8 finished totals of a row from output n on. */
static void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even, vi odd);

/* clang-format off */
#include "kernels/cpu/linear_super_impl.h"
/* clang-format on */

enum { LANES = 8 };

static void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even, vi odd)
{
    int64_t totals[LANES];
    uint32_t left = job->w->base.n_rows > n ? job->w->base.n_rows - n : 0;
    _mm256_storeu_si256((__m256i *)(void *)totals, even);
    _mm256_storeu_si256((__m256i *)(void *)(totals + LANES / 2), odd);
    for (uint32_t i = 0; i < LANES && i < left; i++)
        linear_int_put(job, row, n + i, totals[i % 2 * (LANES / 2) + i / 2]);
}

ALWAYS_INLINE void linear_form(const struct linear_job *job, const struct linear_share *share,
                               struct super_form f)
{
    for (uint32_t n = share->n_begin; n < share->n_end; n += LANES) {
        struct super_source src = super_packed(job->w, f, n);
        uint32_t row = share->row_begin;
        for (; row + 4 <= share->row_end; row += 4)
            super_tile(job, row, &src, f, f.bits, 4);
        for (; row < share->row_end; row++)
            super_tile(job, row, &src, f, f.bits, 1);
    }
}

void linear_super_avx2(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum dtype)job->w->base.source) {
#define FORM(type)                                                                                 \
    case type:                                                                                     \
        linear_form(job, share, super_forms[type]);                                                \
        break;
        FORM(DTYPE_Q5_0)
        FORM(DTYPE_Q5_1)
        FORM(DTYPE_Q2_K)
        FORM(DTYPE_Q3_K)
        FORM(DTYPE_Q5_K)
        FORM(DTYPE_Q6_K)
    default:
        break;
    }
}
