/* vec_avx512.h: 16 lanes of f32 in one register. vec_avx2.h has the same functions with the same
 * bits in each lane. The *_impl.h files use only these functions. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m512 v16;

static inline v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
static inline v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline __mmask16 first_lanes(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}
/* Loads the first n < 16 lanes. The others are 0, and their memory is not read. */
static inline v16 v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
static inline void v_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x);
}
static inline void v_store_n(float *p, v16 x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
static inline v16 v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline v16 v_load_bf16(const uint16_t *p)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
static inline v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
static inline v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
static inline v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
static inline v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
/* Returns a·b + c, rounded once. */
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* Returns a > b ? a : b; b if either is NaN. */
static inline v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
/* Returns a < b ? a : b; b if either is NaN. */
static inline v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
static inline v16 v_abs(v16 a)
{
    return _mm512_abs_ps(a);
}
/* Rounds to the nearest integer, ties to even. */
static inline v16 v_rint(v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* Returns 2^n for whole n in −126..127. */
static inline v16 v_pow2(v16 n)
{
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
/* Returns a < b ? x : y; y if a or b is NaN. */
static inline v16 v_select_lt(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline bool v_any_gt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
/* Adds the lanes by the fixed tree: l[i] + l[i + 8], + 4, + 2, + 1. */
static inline float v_sum(v16 a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float v_max_lanes(v16 a)
{
    return _mm512_reduce_max_ps(a);
}
/* Stores lanes with whole numbers in −128..127 as bytes. */
static inline void v_store_i8(int8_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
static inline void v_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Rounds each lane to the nearest bf16, ties to even; NaN stays NaN. */
static inline v16 v_round_bf16(v16 a)
{
    __m512i bits = _mm512_castps_si512(a);
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), even);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-65536)));
}
static inline void v_store_bf16(uint16_t *p, v16 a)
{
    __m512i bits = _mm512_castps_si512(v_round_bf16(a));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

/* Splits sixteen dwords of two bf16 (or f16) each: the low halves and the high halves, widened. */
static inline void v_split_bf16(v16 pairs, v16 *out_low, v16 *out_high)
{
    __m512i bits = _mm512_castps_si512(pairs);
    *out_low = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    *out_high = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)));
}
static inline void v_split_f16(v16 pairs, v16 *out_low, v16 *out_high)
{
    __m512i bits = _mm512_castps_si512(pairs);
    *out_low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
    *out_high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}
