/* The integer linear: AMX tiles for shares that amx_takes() accepts, otherwise VNNI
 * (linear_int_avx512()). */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/linear/tiles_amx.h"
#include "kernels/cpu/linear/linear_int_amx_impl.h"
/* clang-format on */

void act_arrange_amx(struct act_cpu *act, uint32_t begin, uint32_t end)
{
    amx_arrange(act, begin, end);
}

void linear_int_amx(const struct linear_job *job, const struct linear_share *share)
{
    /* The tiles read arranged activations. act has at least the share's rows, so a share that
     * amx_takes() accepts has arranged rows. */
    if (amx_takes(job->w, share->row_end - share->row_begin))
        amx_linear_int(job, share);
    else
        linear_int_avx512(job, share);
}
