#include "kernels/cuda/attention/attention_prefill_launch.h"

int cuda_launch_attention_prefill_alibi(void *stream, const struct attention_cuda *a)
{
    return prefill_launch_type<true>(stream, a);
}
