/* The op table. rms_norm, the dense linears and the sampler are built; every other op fails with
 * UNIMPLEMENTED and its name, which stream_sync tells. */
#include "kernels/cuda/table_cuda.h"

#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/weight_cuda.h"

static int missing(struct stream *s, const char *what)
{
    return stream_fail(stream_cuda(s), STATUS_UNIMPLEMENTED, what);
}

static int rms_norm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                    float eps)
{
    struct stream_cuda *cuda = stream_cuda(s);
    int rc = stream_enter(cuda);
    if (rc != 0)
        return rc;
    return stream_check(cuda, "rms_norm",
                        cuda_launch_rms_norm(cuda->handle, y->data, y->row_stride, x->data,
                                             x->row_stride, w, x->n_rows, x->n_cols, eps));
}

static int embed(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w)
{
    (void)y, (void)ids, (void)w;
    return missing(s, "op embed is not built on CUDA");
}

static int layer_norm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                      const float *b, float eps)
{
    (void)y, (void)x, (void)w, (void)b, (void)eps;
    return missing(s, "op layer_norm is not built on CUDA");
}

static int add(struct stream *s, struct tensor *y, const struct tensor *x)
{
    (void)y, (void)x;
    return missing(s, "op add is not built on CUDA");
}

static int add_bias(struct stream *s, struct tensor *y, const float *bias)
{
    (void)y, (void)bias;
    return missing(s, "op add_bias is not built on CUDA");
}

static int act_mul(struct stream *s, struct tensor *y, const struct tensor *gate,
                   const struct tensor *up, enum activation kind)
{
    (void)y, (void)gate, (void)up, (void)kind;
    return missing(s, "op act_mul is not built on CUDA");
}

static int rope(struct stream *s, struct tensor *x, const uint32_t *positions,
                const struct rope_params *params)
{
    (void)x, (void)positions, (void)params;
    return missing(s, "op rope is not built on CUDA");
}

static int kv_write(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                    const struct tensor *v, const uint32_t *kv_slots)
{
    (void)kv, (void)k, (void)v, (void)kv_slots;
    return missing(s, "op kv_write is not built on CUDA");
}

static int attention(struct stream *s, struct tensor *y, const struct tensor *q,
                     const struct kv_layer *kv, const struct attention_rows *rows,
                     const struct attention_params *params)
{
    (void)y, (void)q, (void)kv, (void)rows, (void)params;
    return missing(s, "op attention is not built on CUDA");
}

static int gather_rows(struct stream *s, struct tensor *y, const struct tensor *x,
                       const uint32_t *index)
{
    (void)y, (void)x, (void)index;
    return missing(s, "op gather_rows is not built on CUDA");
}

const struct op_table op_table_cuda_set = {
    .name = "cuda",
    .numerics = "cuda-v1",
    .weight_bytes = weight_bytes_cuda,
    .weight_init = weight_init_cuda,
    .weight_pack_rows = weight_pack_rows_cuda,
    .weight_upload = weight_upload_cuda,
    .weight_release = weight_release_cuda,
    .act_bytes = act_bytes_cuda,
    .act_create = act_create_cuda,
    .act_destroy = act_destroy_cuda,
    .embed = embed,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .add = add,
    .add_bias = add_bias,
    .act_mul = act_mul,
    .act_prepare = act_prepare_cuda,
    .linear = linear_cuda,
    .linear_partial = linear_partial_cuda,
    .linear_finish = linear_finish_cuda,
    .rope = rope,
    .kv_write = kv_write,
    .attention = attention,
    .gather_rows = gather_rows,
    .sample = sample_cuda,
};
