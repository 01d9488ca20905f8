/* kv_code.h: the expressions that turn vectors into codes for an int8 cache. All kernel sets share
 * them: code = rint(clamp(x · inv, −limit, limit)), x ≈ code · scale. K and V have codes of 8 bits.
 * Their factors (queries, weights) have 15 bits, so that a sum over 1024 elements, or over the 128
 * positions of a partition, fits 32 bits. */
#pragma once

#include <math.h>

enum { WIDE_CODE_MAX = 128 * 127 };

/* max = max|x|. poison = Σ 0·x, which is not 0 if a value of x is not finite. The scale is then
 * NaN, and so are all results that use it. */
static inline float kv_code_scale(float max, float poison, float limit, float *out_inv)
{
    *out_inv = limit / (max > 1e-30f ? max : 1e-30f);
    return poison == 0.0f ? max * (1.0f / limit) : NAN;
}
