/* act_scaled.h: activations with a scale per row, which the row's largest magnitude gives: E4M3 for
 * f8 weights (DENSE_F8), f16 for widened weights (DENSE_F16). The values are those of act_f8 and
 * act_f16. Included by .cu files only. */
#pragma once

#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/four.h"
#include "kernels/cuda/fragment.h"
#include "kernels/cuda/ptx.h"

/* The largest magnitude of a row, at least ACT_TINY, and what follows from that. */
struct act_top {
    float top, inverse;
};

template <enum dense_form FORM> CUDA_DEVICE struct act_top act_top_of(float largest)
{
    float top = fmaxf(largest, ACT_TINY);
    return {top, FORM == DENSE_F8 ? act_f8_inverse(top) : 0.0f};
}

/* Returns the row's scale. */
template <enum dense_form FORM> CUDA_DEVICE float act_top_unit(struct act_top of)
{
    return FORM == DENSE_F8 ? act_f8_unit(of.top) : act_f16_unit(of.top);
}

/* Stores four columns from element `at` of `dst` on. */
template <enum dense_form FORM>
CUDA_DEVICE void act_put_scaled(void *dst, size_t at, float4 y, struct act_top of)
{
    if constexpr (FORM == DENSE_F8) {
        *(uint32_t *)((uint8_t *)dst + at) =
            fragment_four(act_f8_code(y.x, of.inverse), act_f8_code(y.y, of.inverse),
                          act_f8_code(y.z, of.inverse), act_f8_code(y.w, of.inverse));
    } else {
        uint2 four = {pack_f16x2(act_f16_scaled(y.x, of.top), act_f16_scaled(y.y, of.top)),
                      pack_f16x2(act_f16_scaled(y.z, of.top), act_f16_scaled(y.w, of.top))};
        *(uint2 *)((uint16_t *)dst + at) = four;
    }
}
