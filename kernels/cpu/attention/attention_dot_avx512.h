/* attention_dot_avx512.h: integer dots of wide codes a (−CODE_MAX…CODE_MAX) with the bytes of an
 * int8 cache, by VNNI. A wide code is stored as two signed planes, a = 128·hi + lo: codes[n] hi,
 * then codes[n] lo. The functions of attention_dot_avx2.h give the same results. */
#pragma once

#include <string.h>

#include "kernels/cpu/attention/attention_part.h"
#include "kernels/cpu/vec/vec_avx512.h"

#define DOT_NQ 3
#define DOT_NV 4

/* Stores lanes with whole numbers in −127..127 as bytes, + 128. */
static inline void store_biased(uint8_t *p, v16 codes)
{
    __m512i wide = _mm512_add_epi32(_mm512_cvtps_epi32(codes), _mm512_set1_epi32(KV_CODE_BIAS));
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(wide));
}

/* Stores codes i..i+15 of the n at `codes`. */
static inline void store_wide(uint8_t *codes, uint32_t n, uint32_t i, v16 a)
{
    __m512i wide = _mm512_cvtps_epi32(a);
    __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(wide, _mm512_set1_epi32(64)), 7);
    __m512i lo = _mm512_sub_epi32(wide, _mm512_slli_epi32(hi, 7));
    _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(hi));
    _mm_storeu_si128((__m128i *)(void *)(codes + n + i), _mm512_cvtepi32_epi8(lo));
}

/* Adds the 4 products of each dword to `sum`. In assembly, because with gcc 12's intrinsic the loop
 * of dot_codes() stores its accumulators in every iteration. */
static inline __m512i dot4(__m512i sum, __m512i bytes, __m512i codes)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(codes));
    return sum;
}

static inline __m512i four_codes(const uint8_t *p)
{
    int32_t dword;
    memcpy(&dword, p, sizeof(dword));
    return _mm512_set1_epi32(dword);
}

/* out[i][16·c + lane] = float(T)·scale[i], where T = Σ a[i][j]·(code of element j in that lane)
 * over n_groups groups of 4 elements, and sums[i] = Σ a[i]. With `values`, b are tiles of V,
 * `stride` bytes from one group of 4 positions to the next. Otherwise b are tiles of K, one for
 * each of the nv vectors. The tiles at `next`, laid out like b, are prefetched. */
ALWAYS_INLINE void dot_codes(const uint8_t *const a[], const int32_t sums[], uint32_t n,
                             const uint8_t *const b[], const uint8_t *const next[],
                             uint32_t n_groups, bool values, size_t stride, const float scale[],
                             float *const out[], int nq, int nv)
{
    __m512i hi[DOT_NQ][DOT_NV], lo[DOT_NQ][DOT_NV];
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 16
        for (int c = 0; c < nv; c++)
            hi[i][c] = lo[i][c] = _mm512_setzero_si512();
    for (uint32_t g = 0; g < n_groups; g++) {
        __m512i bytes[DOT_NV];
        size_t in_tile = g % (KV_TILE / 4) * stride, in_key = (size_t)g * 64;
#pragma GCC unroll 16
        for (int c = 0; c < nv; c++) {
            size_t column = in_tile + (size_t)c * 64;
            bytes[c] = _mm512_loadu_si512(values ? b[g / (KV_TILE / 4)] + column : b[c] + in_key);
            FETCH(values ? next[g / (KV_TILE / 4)] + column : next[c] + in_key);
        }
#pragma GCC unroll 16
        for (int i = 0; i < nq; i++) {
            __m512i high = four_codes(a[i] + (size_t)g * 4),
                    low = four_codes(a[i] + n + (size_t)g * 4);
#pragma GCC unroll 16
            for (int c = 0; c < nv; c++) {
                hi[i][c] = dot4(hi[i][c], bytes[c], high);
                lo[i][c] = dot4(lo[i][c], bytes[c], low);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < nq; i++) {
        __m512i bias = _mm512_set1_epi32(-KV_CODE_BIAS * sums[i]);
#pragma GCC unroll 16
        for (int c = 0; c < nv; c++) {
            __m512i t = _mm512_add_epi32(_mm512_slli_epi32(hi[i][c], 7), lo[i][c]);
            t = _mm512_add_epi32(t, bias);
            v_store(out[i] + 16 * c, v_mul(_mm512_cvtepi32_ps(t), v_set1(scale[i])));
        }
    }
}
