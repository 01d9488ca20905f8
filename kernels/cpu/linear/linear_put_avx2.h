/* linear_put_avx2.h: stores finished 64-bit totals as results, in AVX2. y = float(T)·(u·s), each
 * step rounded once: |T| < 2^51, so T is exact in a double. */
#pragma once

#include <immintrin.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/weight_cpu.h"

/* Adding 1.5·2^52 as an integer gives the bits of the double 1.5·2^52 + T. */
ALWAYS_INLINE __m128 float_of_int64(__m256i t)
{
    const __m256d offset = _mm256_set1_pd(6755399441055744.0);
    __m256d shifted = _mm256_castsi256_pd(_mm256_add_epi64(t, _mm256_castpd_si256(offset)));
    return _mm256_cvtpd_ps(_mm256_sub_pd(shifted, offset));
}

/* Stores the totals of 8 outputs of a row, given as floats. */
ALWAYS_INLINE void put_floats(const struct linear_job *job, uint32_t row, uint32_t n, __m256 totals)
{
    __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(weight_units(job->w) + n),
                                 _mm256_set1_ps(job->act->scale[row]));
    _mm256_storeu_ps(job->y + row * job->y_stride + n, _mm256_mul_ps(totals, scale));
}

/* Returns true if 8 outputs from n on exist and results are floats. */
ALWAYS_INLINE bool puts_floats(const struct linear_job *job, uint32_t n)
{
    return job->y != NULL && n + 8 <= job->w->base.n_rows;
}

/* Stores outputs n … n + 3 and n + 4 … n + 7, up to the last output. */
ALWAYS_INLINE void put_int64(const struct linear_job *job, uint32_t row, uint32_t n, __m256i first,
                             __m256i second)
{
    if (puts_floats(job, n)) {
        put_floats(job, row, n, _mm256_set_m128(float_of_int64(second), float_of_int64(first)));
        return;
    }
    int64_t totals[8];
    uint32_t n_rows = job->w->base.n_rows, left = n_rows > n ? n_rows - n : 0;
    _mm256_storeu_si256((__m256i *)(void *)totals, first);
    _mm256_storeu_si256((__m256i *)(void *)(totals + 4), second);
    for (uint32_t i = 0; i < 8 && i < left; i++)
        linear_int_put(job, row, n + i, totals[i]);
}
