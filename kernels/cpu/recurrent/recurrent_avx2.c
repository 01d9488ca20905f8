#include <math.h>

#include "kernels/cpu/vec/vec_avx2.h"

#ifndef SPAN_NV
#define SPAN_NV 2
#endif
#define SPAN_NV_ROW 4

static inline __m256 half_exponent(__m256 x)
{
    __m256i e = _mm256_srli_epi32(_mm256_castps_si256(x), 23);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(e, _mm256_set1_epi32(127)));
}
static inline __m256 half_mantissa(__m256 x)
{
    __m256i m = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFF));
    return _mm256_castsi256_ps(_mm256_or_si256(m, _mm256_set1_epi32(0x3F800000)));
}
/* The exponent of a positive normal number, and its mantissa in [1, 2). */
static inline v16 v_exponent(v16 x)
{
    return (v16){half_exponent(x.lo), half_exponent(x.hi)};
}
static inline v16 v_mantissa(v16 x)
{
    return (v16){half_mantissa(x.lo), half_mantissa(x.hi)};
}

/* Transposes four columns of four taps at a time. False for other convolutions. */
static inline _Bool conv_taps_wide(float *taps, size_t taps_stride, const float *w, uint32_t width)
{
    if (width != 4)
        return 0;
    for (uint32_t i = 0; i < 16; i += 4) {
        __m128 a = _mm_loadu_ps(w + 4 * i), b = _mm_loadu_ps(w + 4 * i + 4),
               c = _mm_loadu_ps(w + 4 * i + 8), d = _mm_loadu_ps(w + 4 * i + 12);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(taps + i, a);
        _mm_storeu_ps(taps + taps_stride + i, b);
        _mm_storeu_ps(taps + 2 * taps_stride + i, c);
        _mm_storeu_ps(taps + 3 * taps_stride + i, d);
    }
    return 1;
}

#include "kernels/cpu/recurrent/recurrent_impl.h"

void recurrent_taps_avx2(float *taps, size_t taps_stride, const float *w, uint32_t n,
                         uint32_t width)
{
    conv_taps(taps, taps_stride, w, n, width);
}

void recurrent_conv_avx2(const struct conv_row *row)
{
    conv_row(row);
}

void recurrent_norm_avx2(float *y, const float *x, uint32_t n, float eps, float scale)
{
    l2_norm(y, x, n, eps, scale);
}

void recurrent_gates_avx2(const struct span_gates *gates)
{
    span_gates(gates);
}

void recurrent_delta_avx2(const struct state_span *span)
{
    delta_span(span);
}

void recurrent_ssm_avx2(const struct state_span *span)
{
    ssm_span(span);
}
