/* BF16 linears in AMX tiles; F16 and F32 use the code of avx512. */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/linear/tiles_amx.h"
#include "kernels/cpu/vec/vec_avx512.h"
#include "kernels/cpu/linear/linear_dense_amx_impl.h"
/* clang-format on */

#include "base/system/cpu.h"

void linear_dense_amx(const struct linear_job *job, const struct linear_share *share)
{
    if (job->w->format != PACK_BF16)
        dense_linear_avx512(job, share);
    else if (share->row_end - share->row_begin >= AMX_DENSE_MIN_ROWS && linear_amx_bf16_checks())
        dense_by_tiles(job, share);
    else
        dense_by_fma(job, share);
}
