/* The integer linear in AMX tiles from AMX_MIN_ROWS rows on, by VNNI below. */
/* The instructions come first, then the loops written in them. */
/* clang-format off */
#include "kernels/cpu/tiles_amx.h"
#include "kernels/cpu/linear_int_amx_impl.h"
/* clang-format on */

void linear_int_amx(const struct linear_job *job, const struct linear_share *share)
{
    if (share->row_end - share->row_begin >= AMX_MIN_ROWS && amx_takes(job->w))
        amx_linear_int(job, share);
    else
        linear_int_avx512(job, share);
}
