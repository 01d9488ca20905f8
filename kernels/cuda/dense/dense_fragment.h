/* dense_fragment.h: multiplications of 16 × 8 tiles by form, for the kernels of dense linears.
 * Included by .cu files only. */
#pragma once

#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/ptx.h"

/* Widens four int8 to two pairs of bf16, exactly: bytes 0 and 2, bytes 1 and 3. */
CUDA_DEVICE void dense_widen(uint32_t out[2], uint32_t four)
{
    uint32_t odd = dense_odd_bytes(four);
    out[0] = add_bf16x2(dense_widen_low(four), dense_widen_high(four));
    out[1] = add_bf16x2(dense_widen_low(odd), dense_widen_high(odd));
}

/* d += A·B of fragments of 32 bytes along k (int8: already widened). */
template <enum dense_form FORM>
CUDA_DEVICE void dense_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (FORM == DENSE_F16) {
        mma_m16n8k16_f16(d, a, b);
    } else if constexpr (FORM == DENSE_F8) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890 /* other devices refuse f8 weights */
        mma_m16n8k32_e4m3(d, a, b);
#endif
    } else {
        mma_m16n8k16_bf16(d, a, b);
    }
}
