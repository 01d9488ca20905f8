#include "kernels/cuda/attention/attention_wgmma_kernel.h"
#include "kernels/cuda/launch.h"

template <typename Kv> static int wga_launch_dim(void *stream, const struct attention_cuda *a)
{
    return wga_padded_dim(a->kv.head_dim) == 64 ? wga_launch<Kv, 64>(stream, a)
                                                : wga_launch<Kv, 128>(stream, a);
}

int cuda_launch_attention_wgmma(void *stream, const struct attention_cuda *a)
{
    switch (a->kv.dtype) {
    case DTYPE_BF16:
        return wga_launch_dim<wga_bf16>(stream, a);
    case DTYPE_F16:
        return wga_launch_dim<wga_f16>(stream, a);
    default:
        return wga_launch_dim<wga_coded>(stream, a);
    }
}
