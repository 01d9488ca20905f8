/* linear_super_impl.h in AVX2: 8 outputs in the 8 dword lanes, half a panel. Codes have at most 6
 * bits, so that vpmaddubsw does not saturate (63·127·2); PACK_INT8 has its own kernel. */
#include <immintrin.h>

#include "kernels/cpu/inner.h"

typedef __m256i vi;
#define VI(op)    _mm256_##op
#define VI_SI(op) _mm256_##op##_si256

/* clang-format off */
#include "kernels/cpu/vec_int.h"
/* clang-format on */

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
