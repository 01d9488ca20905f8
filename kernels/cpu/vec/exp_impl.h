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

/* maths_softcap() */
static inline v16 v_softcap(v16 x, float cap)
{
    v16 one = v_set1(1.0f), w = v_mul(x, v_set1(2.0f / cap)), z = v_mul(w, w);
    v16 p = v_fma(v_fma(z, v_set1(SOFTCAP_C4), v_set1(SOFTCAP_C3)), z, v_set1(SOFTCAP_C2));
    p = v_mul(w, v_fma(v_fma(p, z, v_set1(SOFTCAP_C1)), z, v_set1(SOFTCAP_C0)));
    v16 wide = v_sub(one, v_div(v_set1(2.0f), v_add(one, v_exp(w))));
    return v_mul(v_set1(cap), v_select_lt(v_abs(w), one, p, wide));
}
