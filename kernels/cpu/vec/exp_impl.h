/* exp_impl.h: the exponential of 16 lanes (polynomial: maths.h), equal to maths_exp() in each lane.
 * The includer has the vectors (vec_*.h). */
#pragma once

#include "kernels/maths.h"

static inline v16 v_exp(v16 x)
{
    v16 c = v_min(v_set1(EXP_MAX), x), n = v_rint(v_mul(c, v_set1(EXP_LOG2E)));
    v16 r = v_fma(n, v_set1(-EXP_LN2_HI), c);
    r = v_fma(n, v_set1(-EXP_LN2_LO), r);
    v16 p = v_fma(v_set1(EXP_C5), r, v_set1(EXP_C4));
    p = v_fma(p, r, v_set1(EXP_C3));
    p = v_fma(p, r, v_set1(EXP_C2));
    p = v_fma(p, r, v_set1(EXP_C1));
    p = v_fma(p, r, v_set1(EXP_C0));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    return v_select_lt(x, v_set1(EXP_MIN), v_zero(), v_mul(p, v_pow2(n)));
}
