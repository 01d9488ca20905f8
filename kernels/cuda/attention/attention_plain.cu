#include "kernels/cuda/attention/attention_latent_index.h"
#include "kernels/cuda/attention/attention_plain_kernel.h"
#include "kernels/cuda/launch.h"

enum {
    SHORT_DIM = CUDA_TILED_MAX_DIM,
    LONG_DIM = CUDA_ATTENTION_MAX_DIM,
    LONG_KEY = CUDA_ATTENTION_MAX_KEY
};

template <uint32_t MAX_DIM, bool ALIBI>
static int launch(void *stream, const struct attention_cuda *a, const struct decode_plan *plan)
{
    static_assert(sizeof(struct plain_shared<MAX_DIM>) <= SHARED_WITHOUT_LEAVE, "needs no leave");
    auto *kernel = attention_plain<MAX_DIM, ALIBI>;
    return CUDA_LAUNCH(kernel, dim3(a->n_rows, plan->n_tiles, plan->n_strides), DECODE_THREADS,
                       sizeof(struct plain_shared<MAX_DIM>), stream, *a);
}

int cuda_launch_attention_plain(void *stream, const struct attention_cuda *a,
                                const struct decode_plan *plan)
{
    if (a->slopes != nullptr)
        return attention_width(&a->kv) > SHORT_DIM ? launch<LONG_KEY, true>(stream, a, plan)
                                                   : launch<SHORT_DIM, true>(stream, a, plan);
    return attention_width(&a->kv) > SHORT_DIM ? launch<LONG_KEY, false>(stream, a, plan)
                                               : launch<SHORT_DIM, false>(stream, a, plan);
}

int cuda_launch_attention_combine(void *stream, const struct attention_cuda *a)
{
    auto *kernel = a->kv.v_dim > SHORT_DIM         ? attention_combine<LONG_DIM>
                   : a->kv.v_dim > COMBINE_THREADS ? attention_combine<SHORT_DIM>
                                                   : attention_combine<COMBINE_THREADS>;
    return CUDA_LAUNCH(kernel, dim3(a->n_rows, a->n_heads), COMBINE_THREADS, COMBINE_BYTES, stream,
                       *a);
}
