/* attention_prefill_launch.h: chooses the instance of path P's kernel for a call. Instances with
 * ALiBi are compiled apart (attention_prefill_alibi.cu). */
#pragma once

#include "kernels/cuda/attention/attention_prefill_kernel.h"
#include "kernels/cuda/launch.h"

/* Launches the instances with ALiBi; cuda_launch_attention_prefill() calls it if there are
 * slopes. */
int cuda_launch_attention_prefill_alibi(void *stream, const struct attention_cuda *a);

template <typename Kv, bool ALIBI>
static int prefill_launch_dim(void *stream, const struct attention_cuda *a)
{
    switch (prefill_padded_dim(attention_width(&a->kv))) {
    case 64:
        return prefill_launch<Kv, 64, ALIBI>(stream, a);
    case 128:
        return prefill_launch<Kv, 128, ALIBI>(stream, a);
    case 192:
        return prefill_launch<Kv, 192, ALIBI>(stream, a);
    default:
        return prefill_launch<Kv, 256, ALIBI>(stream, a);
    }
}

template <bool ALIBI> static int prefill_launch_type(void *stream, const struct attention_cuda *a)
{
    switch (a->kv.dtype) {
    case DTYPE_BF16:
        return prefill_launch_dim<kv_bf16, ALIBI>(stream, a);
    case DTYPE_F16:
        return prefill_launch_dim<kv_f16, ALIBI>(stream, a);
    default:
        return prefill_launch_dim<kv_coded, ALIBI>(stream, a);
    }
}
