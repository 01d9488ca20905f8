#include <math.h>

#include "kernels/cpu/vec/vec_avx512.h"

#ifndef SPAN_NV
#define SPAN_NV 4
#endif
#define SPAN_NV_ROW 8

/* The exponent of a positive normal number, and its mantissa in [1, 2). */
static inline v16 v_exponent(v16 x)
{
    __m512i e = _mm512_srli_epi32(_mm512_castps_si512(x), 23);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(e, _mm512_set1_epi32(127)));
}
static inline v16 v_mantissa(v16 x)
{
    __m512i m = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFF));
    return _mm512_castsi512_ps(_mm512_or_si512(m, _mm512_set1_epi32(0x3F800000)));
}

/* Picks lanes l · width + t of up to four vectors. False for wider convolutions. */
static inline _Bool conv_taps_wide(float *taps, size_t taps_stride, const float *w, uint32_t width)
{
    if (width > 4)
        return 0;
    __m512 v[4];
    for (uint32_t i = 0; i < 4; i++)
        v[i] = i < width ? _mm512_loadu_ps(w + 16 * i) : _mm512_setzero_ps();
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    lane = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int32_t)width));
    for (uint32_t t = 0; t < width; t++) {
        __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32((int32_t)t));
        __m512 low = _mm512_permutex2var_ps(v[0], at, v[1]);
        __m512 high = _mm512_permutex2var_ps(v[2], at, v[3]);
        __mmask16 is_high = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(32));
        _mm512_storeu_ps(taps + t * taps_stride, _mm512_mask_blend_ps(is_high, low, high));
    }
    return 1;
}

#include "kernels/cpu/recurrent/recurrent_impl.h"

void recurrent_taps_avx512(float *taps, size_t taps_stride, const float *w, uint32_t n,
                           uint32_t width)
{
    conv_taps(taps, taps_stride, w, n, width);
}

void recurrent_conv_avx512(const struct conv_row *row)
{
    conv_row(row);
}

void recurrent_norm_avx512(float *y, const float *x, uint32_t n, float eps, float scale)
{
    l2_norm(y, x, n, eps, scale);
}

void recurrent_gates_avx512(const struct span_gates *gates)
{
    span_gates(gates);
}

void recurrent_delta_avx512(const struct state_span *span)
{
    delta_span(span);
}

void recurrent_ssm_avx512(const struct state_span *span)
{
    ssm_span(span);
}
