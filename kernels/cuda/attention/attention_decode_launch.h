/* attention_decode_launch.h: chooses the instance of path D's kernel for a call. Instances with
 * ALiBi are compiled apart (attention_decode_alibi.cu). */
#pragma once

#include "kernels/cuda/attention/attention_decode_kernel.h"
#include "kernels/cuda/launch.h"

/* Launches the instances with ALiBi; cuda_launch_attention_decode() calls it if there are
 * slopes. */
int cuda_launch_attention_decode_alibi(void *stream, const struct attention_cuda *a,
                                       const struct decode_plan *plan);

template <typename Kv, uint32_t DIM, bool ALIBI>
static int decode_launch_dim(void *stream, const struct attention_cuda *a,
                             const struct decode_plan *plan)
{
    return decode_tile_heads(a->heads_per_kv) == DECODE_SPLIT_HEADS
               ? decode_launch<Kv, DIM, true, ALIBI>(stream, a, plan)
               : decode_launch<Kv, DIM, false, ALIBI>(stream, a, plan);
}

template <typename Kv, bool ALIBI>
static int decode_launch_halves(void *stream, const struct attention_cuda *a,
                                const struct decode_plan *plan)
{
    switch (decode_padded_dim(attention_width(&a->kv), Kv::elem_bytes)) {
    case 64:
        return decode_launch_dim<Kv, 64, ALIBI>(stream, a, plan);
    case 128:
        return decode_launch_dim<Kv, 128, ALIBI>(stream, a, plan);
    case 192:
        return decode_launch_dim<Kv, 192, ALIBI>(stream, a, plan);
    default:
        return decode_launch_dim<Kv, 256, ALIBI>(stream, a, plan);
    }
}

template <typename Kv, bool ALIBI>
static int decode_launch_codes(void *stream, const struct attention_cuda *a,
                               const struct decode_plan *plan)
{
    return decode_padded_dim(attention_width(&a->kv), Kv::elem_bytes) == 128
               ? decode_launch_dim<Kv, 128, ALIBI>(stream, a, plan)
               : decode_launch_dim<Kv, 256, ALIBI>(stream, a, plan);
}

template <bool ALIBI>
static int decode_launch_type(void *stream, const struct attention_cuda *a,
                              const struct decode_plan *plan)
{
    switch (a->kv.dtype) {
    case DTYPE_BF16:
        return decode_launch_halves<kv_bf16, ALIBI>(stream, a, plan);
    case DTYPE_F16:
        return decode_launch_halves<kv_f16, ALIBI>(stream, a, plan);
    case DTYPE_I8:
        return decode_launch_codes<kv_i8, ALIBI>(stream, a, plan);
    default:
        return decode_launch_codes<kv_f8, ALIBI>(stream, a, plan);
    }
}
