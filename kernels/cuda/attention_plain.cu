#include "kernels/cuda/attention_plain_kernel.h"
#include "kernels/cuda/launch.h"

int cuda_launch_attention_plain(void *stream, const struct attention_cuda *a,
                                const struct decode_plan *plan)
{
    static_assert(sizeof(struct plain_shared) <= 48 << 10, "needs no leave");
    auto *kernel = a->slopes != nullptr ? attention_plain<true> : attention_plain<false>;
    return CUDA_LAUNCH(kernel, dim3(a->n_rows, plan->n_tiles, plan->n_strides), DECODE_THREADS,
                       sizeof(struct plain_shared), stream, *a);
}

int cuda_launch_attention_combine(void *stream, const struct attention_cuda *a)
{
    return CUDA_LAUNCH(attention_combine, dim3(a->n_rows, a->n_heads), COMBINE_THREADS,
                       2 * COMBINE_CHUNK * sizeof(float), stream, *a);
}
