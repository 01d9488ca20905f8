/* Dense linears in pairs of AVX2 registers. */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/vec/vec_avx2.h"

#define DENSE_ROWS      6
#define DENSE_BF16_ROWS 4
#define DENSE_PAIR_ROWS 2

#include "kernels/cpu/linear/dense_impl.h"
/* clang-format on */

void dense_linear_avx2(const struct linear_job *job, const struct linear_share *share)
{
    dense_all(job, share);
}
