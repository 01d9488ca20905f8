/* attention_dot_avx2.h: the functions of attention_dot_avx512.h in AVX2. Wide codes are words.
 * Bytes are widened to words too, because vpmaddubsw saturates. */
#pragma once

#include <string.h>

#include "kernels/cpu/attention/attention_part.h"
#include "kernels/cpu/vec/vec_avx2.h"

#define DOT_NQ 3
#define DOT_NV 1

static inline void store_biased(uint8_t *p, v16 codes)
{
    v_store_i8((int8_t *)p, codes);
    __m128i *at = (__m128i *)(void *)p;
    _mm_storeu_si128(at, _mm_xor_si128(_mm_loadu_si128(at), _mm_set1_epi8(-KV_CODE_BIAS)));
}

static inline void store_wide(uint8_t *codes, uint32_t n, uint32_t i, v16 a)
{
    (void)n;
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    _mm256_storeu_si256((__m256i *)(void *)(codes + 2 * (size_t)i),
                        _mm256_permute4x64_epi64(words, 0xD8));
}

static inline __m256i four_codes(const uint8_t *p)
{
    int64_t words;
    memcpy(&words, p, sizeof(words));
    return _mm256_set1_epi64x(words);
}

/* Adds adjacent sums of `a` and `b`, each a sum of two products, to eight sums of four products.
 * Adds `bias` and multiplies by `scale`. */
static inline __m256 finish_dots(__m256i a, __m256i b, __m256i bias, __m256 scale)
{
    __m256i t = _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(t, bias)), scale);
}

ALWAYS_INLINE void dot_codes(const uint8_t *const a[], const int32_t sums[], uint32_t n,
                             const uint8_t *const b[], const uint8_t *const next[],
                             uint32_t n_groups, bool values, size_t stride, const float scale[],
                             float *const out[], int nq, int nv)
{
    __m256i acc[DOT_NQ][4];
    (void)n;
    (void)nv;
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm256_setzero_si256();
    for (uint32_t g = 0; g < n_groups; g++) {
        size_t in_tile = g % (KV_TILE / 4) * stride, in_key = (size_t)g * 64;
        const uint8_t *at = values ? b[g / (KV_TILE / 4)] + in_tile : b[0] + in_key;
        FETCH(values ? next[g / (KV_TILE / 4)] + in_tile : next[0] + in_key);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m256i words = _mm256_cvtepu8_epi16(
                _mm_loadu_si128((const __m128i *)(const void *)(at + (size_t)j * 16)));
#pragma GCC unroll 16
            for (int i = 0; i < nq; i++)
                acc[i][j] = _mm256_add_epi32(
                    acc[i][j], _mm256_madd_epi16(words, four_codes(a[i] + (size_t)g * 8)));
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++) {
        __m256i bias = _mm256_set1_epi32(-KV_CODE_BIAS * sums[i]);
        __m256 by = _mm256_set1_ps(scale[i]);
        v_store(out[i], (v16){finish_dots(acc[i][0], acc[i][1], bias, by),
                              finish_dots(acc[i][2], acc[i][3], bias, by)});
    }
}
