/* BF16 linears by vdpbf16ps, two columns in one instruction: the bits of linear_dense_avx512.c
 * (dense.h) at twice the rate where the processor issues it as often as an FMA. */
/* The vectors come first, then the loops written in them. */
/* clang-format off */
#include "kernels/cpu/vec_avx512.h"

#define DENSE_ROWS      12
#define DENSE_BF16_ROWS 12
#define DENSE_PAIR_ROWS 12
#define DENSE_DOT_BF16(acc, w, x)                                                                  \
    _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(w), (__m512bh)_mm512_castps_si512(x))

#include "kernels/cpu/dense_impl.h"
/* clang-format on */

void linear_dense_bf16_avx512(const struct linear_job *job, const struct linear_share *share)
{
    if (job->w->format == PACK_BF16)
        dense_share(job, share, FORM_BF16_DOT);
    else
        linear_dense_avx512(job, share);
}
