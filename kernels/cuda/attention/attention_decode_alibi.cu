#include "kernels/cuda/attention/attention_decode_launch.h"

int cuda_launch_attention_decode_alibi(void *stream, const struct attention_cuda *a,
                                       const struct decode_plan *plan)
{
    return decode_launch_type<true>(stream, a, plan);
}
