/* Dense linears in AVX-512 registers, by FMA alone. */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/vec/vec_avx512.h"

#define DENSE_ROWS      12
#define DENSE_BF16_ROWS 12
#define DENSE_PAIR_ROWS 12

#include "kernels/cpu/linear/dense_impl.h"
/* clang-format on */

void dense_linear_avx512(const struct linear_job *job, const struct linear_share *share)
{
    dense_all(job, share);
}
