/* vec_avx2.h: 16 lanes of f32 in two registers; vec_avx512.h documents the functions. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    __m256 lo, hi;
} v16;

#define V_EACH(op, a, b) ((v16){op((a).lo, (b).lo), op((a).hi, (b).hi)})

static inline v16 v_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
static inline v16 v_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline __m256i first_lanes(uint32_t n, int32_t base)
{
    __m256i lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(base));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane);
}
static inline v16 v_load_n(const float *p, uint32_t n)
{
    return (v16){_mm256_maskload_ps(p, first_lanes(n, 0)),
                 _mm256_maskload_ps(p + 8, first_lanes(n, 8))};
}
static inline void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
static inline void v_store_n(float *p, v16 x, uint32_t n)
{
    _mm256_maskstore_ps(p, first_lanes(n, 0), x.lo);
    _mm256_maskstore_ps(p + 8, first_lanes(n, 8), x.hi);
}
static inline v16 v_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
static inline __m256 half_bf16(const uint16_t *p)
{
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
static inline v16 v_load_bf16(const uint16_t *p)
{
    return (v16){half_bf16(p), half_bf16(p + 8)};
}
static inline v16 v_add(v16 a, v16 b)
{
    return V_EACH(_mm256_add_ps, a, b);
}
static inline v16 v_sub(v16 a, v16 b)
{
    return V_EACH(_mm256_sub_ps, a, b);
}
static inline v16 v_mul(v16 a, v16 b)
{
    return V_EACH(_mm256_mul_ps, a, b);
}
static inline v16 v_div(v16 a, v16 b)
{
    return V_EACH(_mm256_div_ps, a, b);
}
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline v16 v_max(v16 a, v16 b)
{
    return V_EACH(_mm256_max_ps, a, b);
}
static inline v16 v_min(v16 a, v16 b)
{
    return V_EACH(_mm256_min_ps, a, b);
}
static inline v16 v_abs(v16 a)
{
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    return (v16){_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
static inline v16 v_rint(v16 a)
{
    return (v16){_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline __m256 half_pow2(__m256 n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
static inline v16 v_pow2(v16 n)
{
    return (v16){half_pow2(n.lo), half_pow2(n.hi)};
}
static inline v16 v_select_lt(v16 a, v16 b, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
static inline bool v_any_gt(v16 a, v16 b)
{
    __m256 any =
        _mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
    return _mm256_movemask_ps(any) != 0;
}
static inline float v_sum(v16 a)
{
    __m256 h = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float v_max_lanes(v16 a)
{
    __m256 h = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
/* Converts sixteen dwords in lane order to sixteen words. */
static inline __m256i words_of(__m256i lo, __m256i hi)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xD8);
}
static inline void v_store_i8(int8_t *p, v16 a)
{
    __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)), 0xD8);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)p, bytes);
}
static inline void v_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(void *)(p + 8),
                     _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline __m256i round_bf16(__m256 a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), even);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
}
static inline v16 v_round_bf16(v16 a)
{
    __m256i mask = _mm256_set1_epi32(-65536);
    return (v16){_mm256_castsi256_ps(_mm256_and_si256(round_bf16(a.lo), mask)),
                 _mm256_castsi256_ps(_mm256_and_si256(round_bf16(a.hi), mask))};
}
static inline void v_store_bf16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, words_of(_mm256_srli_epi32(round_bf16(a.lo), 16),
                                                       _mm256_srli_epi32(round_bf16(a.hi), 16)));
}

static inline void v_split_bf16(v16 pairs, v16 *out_low, v16 *out_high)
{
    __m256i lo = _mm256_castps_si256(pairs.lo), hi = _mm256_castps_si256(pairs.hi),
            mask = _mm256_set1_epi32(-65536);
    *out_low = (v16){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                     _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
    *out_high = (v16){_mm256_castsi256_ps(_mm256_and_si256(lo, mask)),
                      _mm256_castsi256_ps(_mm256_and_si256(hi, mask))};
}
static inline v16 widen_words(__m256i words)
{
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
}
static inline void v_split_f16(v16 pairs, v16 *out_low, v16 *out_high)
{
    __m256i lo = _mm256_castps_si256(pairs.lo), hi = _mm256_castps_si256(pairs.hi),
            mask = _mm256_set1_epi32(65535);
    *out_low = widen_words(words_of(_mm256_and_si256(lo, mask), _mm256_and_si256(hi, mask)));
    *out_high = widen_words(words_of(_mm256_srli_epi32(lo, 16), _mm256_srli_epi32(hi, 16)));
}
