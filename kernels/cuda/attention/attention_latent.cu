#include "kernels/cuda/attention/attention_latent.h"

#include "kernels/cuda/attention/attention_latent_kernel.h"

template <typename Kv>
static int launch(void *stream, const struct attention_cuda *a, uint32_t tile_rows, dim3 grid)
{
    constexpr uint32_t n_bytes = latent_memory_of(Kv::elem_bytes).n_bytes;
    static_assert(n_bytes <= SHARED_PER_BLOCK, "fits every GPU");
    auto *kernel = attention_latent<Kv>;
    int code = CUDA_ALLOW_SHARED(kernel, n_bytes);
    return code != 0 ? code
                     : CUDA_LAUNCH(kernel, grid, LATENT_THREADS, n_bytes, stream, *a, tile_rows);
}

static int launch_type(void *stream, const struct attention_cuda *a, uint32_t tile_rows, dim3 grid)
{
    switch (a->kv.dtype) {
    case DTYPE_BF16:
        return launch<kv_bf16>(stream, a, tile_rows, grid);
    case DTYPE_F16:
        return launch<kv_f16>(stream, a, tile_rows, grid);
    default:
        return launch<kv_coded>(stream, a, tile_rows, grid);
    }
}

int cuda_launch_attention_latent(void *stream, const struct attention_cuda *a,
                                 const struct decode_plan *plan)
{
    return launch_type(stream, a, 1, dim3(a->n_rows, plan->n_tiles, plan->n_strides));
}

int cuda_launch_attention_latent_prompt(void *stream, const struct attention_cuda *a)
{
    uint32_t rows = latent_tile_rows(a->heads_per_kv);
    return launch_type(stream, a, rows,
                       dim3(prefill_n_blocks(a->n_rows, rows),
                            latent_n_tiles(a->kv.n_kv_heads, a->heads_per_kv)));
}
