/* Registers 112, shared memory 181 KiB, one block of 512 per SM. */
#include "kernels/cuda/attention/attention_team_kernel.h"
#include "kernels/cuda/launch.h"

template <bool ALIBI>
static int launch(void *stream, const struct attention_cuda *a, const struct decode_plan *plan)
{
    return a->kv.dtype == DTYPE_I8 ? team_launch<kv_i8, ALIBI>(stream, a, plan)
                                   : team_launch<kv_f8_by_cvt, ALIBI>(stream, a, plan);
}

int cuda_launch_attention_team(void *stream, const struct attention_cuda *a,
                               const struct decode_plan *plan)
{
    return a->slopes != nullptr ? launch<true>(stream, a, plan) : launch<false>(stream, a, plan);
}
