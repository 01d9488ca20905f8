/* attention_codes_impl.h: converts queries and weights to wide codes (kv_code.h), for the integer
 * dots of an int8 cache. The includer has the vectors, store_wide() (attention_dot_*.h) and
 * ATTENTION_NQ. */
#pragma once

#include <string.h>

#include "kernels/cpu/attention/attention_part.h"
#include "kernels/cpu/attention/kv_code.h"

/* The queries that are processed per partition at once, or their weights, as wide codes. */
struct wide_codes {
    const uint8_t *codes[ATTENTION_NQ];
    int32_t sums[ATTENTION_NQ];
    float scales[ATTENTION_NQ];
};

/* Returns the value of a code step if the largest |x| maps to `limit`; *out_inv is the factor for
 * x. */
static inline float code_scale(const float *x, uint32_t n, float limit, float *out_inv)
{
    v16 max = v_zero(), poison = v_zero();
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = n - i >= 16 ? v_load(x + i) : v_load_n(x + i, n - i);
        max = v_max(v_abs(v), max);
        poison = v_fma(v, v_zero(), poison);
    }
    return kv_code_scale(v_max_lanes(max), v_sum(poison), limit, out_inv);
}

static inline v16 code_of(v16 x, float inv, float limit)
{
    v16 a = v_max(v_mul(x, v_set1(inv)), v_set1(-limit)); /* NaN becomes −limit */
    return v_rint(v_min(a, v_set1(limit)));
}

/* Converts x[n], padded with zeros to a multiple of 16, to the wide codes number i of *out. The
 * planes are n_pad apart. */
static inline void widen_codes(const float *x, uint32_t n, uint32_t n_pad, uint8_t *codes,
                               uint32_t i, struct wide_codes *out)
{
    float inv;
    v16 sum = v_zero();
    out->scales[i] = code_scale(x, n, WIDE_CODE_MAX, &inv);
    for (uint32_t at = 0; at < n; at += 16) {
        v16 v = n - at >= 16 ? v_load(x + at) : v_load_n(x + at, n - at);
        v16 a = code_of(v, inv, WIDE_CODE_MAX);
        store_wide(codes, n_pad, at, a);
        sum = v_add(sum, a);
    }
    out->codes[i] = codes;
    out->sums[i] = (int32_t)v_sum(sum); /* exact: below 2^24 */
}

/* Multiplies the weights of one query by the scales of V and converts them to wide codes, entry i
 * of *out. Weights outside the query's range are 0. Overwrites p. */
static inline void weigh_scales(float *p, const struct partition *part, uint32_t n, uint8_t *codes,
                                uint32_t i, struct wide_codes *out)
{
    for (uint32_t at = 0; at < n; at += 16) {
        const float *scales = (const float *)(const void *)part->v_scales[at / KV_TILE];
        v16 w = v_load(p + at), zero = v_zero();
        v_store(p + at, v_select_lt(zero, w, v_mul(w, v_load(scales)), zero));
    }
    widen_codes(p, n, PART, codes, i, out);
}
