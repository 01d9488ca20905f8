/* The host side of row_ops.cu. */
#include "base/status.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/rows/row_ops.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/cuda/weight_cuda.h"

/* Enters the device, queues the launch and checks it; queues nothing if there are no rows. */
#define QUEUE(stream, n_rows, name, launch)                                                        \
    do {                                                                                           \
        struct stream_cuda *s = stream_cuda(stream);                                               \
        int rc = device_stream_enter(s);                                                           \
        return rc != 0 || (n_rows) == 0 ? rc : device_stream_check(s, name, launch);               \
    } while (0)

static struct kv_cuda kv_of(const struct kv_layer *kv)
{
    return (struct kv_cuda){kv->k,          kv->v,          kv->dtype,    kv->n_blocks,
                            kv->block_size, kv->n_kv_heads, kv->head_dim, kv->v_dim};
}

int embed_cuda(struct stream *stream, struct tensor *y, const uint32_t *ids, const struct weight *w)
{
    if (weight_is_quant(w))
        return embed_quant_cuda(stream, y, ids, w);
    const struct weight_cuda *cuda = weight_cuda(w);
    struct embed_cuda table = {.data = cuda->data,
                               .type = (enum dtype)w->source,
                               .n_rows = w->n_rows,
                               .n_cols = y->n_cols,
                               .row_bytes = cuda->row_bytes,
                               .scales = cuda->scales,
                               .is_f8 = cuda->form == DENSE_F8};
    if (table.data == NULL)
        return device_stream_fail(stream_cuda(stream), STATUS_INTERNAL,
                                  "embed: the weight was not uploaded");
    QUEUE(stream, y->n_rows, "embed",
          cuda_launch_embed(s->handle, y->data, y->row_stride, ids, y->n_rows, &table));
}

int rms_norm_cuda(struct stream *stream, struct tensor *y, const struct tensor *x, const float *w,
                  uint32_t n_w, float eps)
{
    const struct norm_rows rows = {y->data,       x->data,       w,         NULL,
                                   y->row_stride, x->row_stride, x->n_rows, x->n_cols,
                                   eps,           false,         n_w};
    QUEUE(stream, x->n_rows, "rms_norm", cuda_launch_norm(s->handle, &rows));
}

int layer_norm_cuda(struct stream *stream, struct tensor *y, const struct tensor *x, const float *w,
                    const float *b, uint32_t n_w, float eps)
{
    const struct norm_rows rows = {
        y->data, x->data, w, b, y->row_stride, x->row_stride, x->n_rows, x->n_cols, eps, true, n_w};
    QUEUE(stream, x->n_rows, "layer_norm", cuda_launch_norm(s->handle, &rows));
}

int add_cuda(struct stream *stream, struct tensor *y, const struct tensor *x, float factor)
{
    QUEUE(stream, y->n_rows, "add",
          cuda_launch_add(s->handle, y->data, y->row_stride, x->data, x->row_stride, y->n_rows,
                          y->n_cols, factor));
}

int add_bias_cuda(struct stream *stream, struct tensor *y, const float *bias)
{
    QUEUE(stream, y->n_rows, "add_bias",
          cuda_launch_add(s->handle, y->data, y->row_stride, bias, 0, y->n_rows, y->n_cols, 1.0f));
}

int scale_cuda(struct stream *stream, struct tensor *x, const uint32_t *positions,
               const struct scale_params *params)
{
    const struct scale_cuda p = {
        .factor = params->factor,
        .softcap = params->softcap,
        .by_position = params->by_position,
        .period = params->period,
        .offset = params->offset,
        .gate = params->gate ? params->gate->data : NULL,
        .gate_stride = params->gate ? params->gate->row_stride : 0,
    };
    QUEUE(
        stream, x->n_rows, "scale",
        cuda_launch_scale(s->handle, x->data, x->row_stride, positions, x->n_rows, x->n_cols, &p));
}

int act_mul_cuda(struct stream *stream, struct tensor *y, const struct tensor *gate,
                 const struct tensor *up, enum activation kind)
{
    QUEUE(stream, y->n_rows, "act_mul",
          cuda_launch_act_mul(s->handle, y->data, y->row_stride, gate->data, gate->row_stride,
                              up ? up->data : NULL, up ? up->row_stride : 0, y->n_rows, y->n_cols,
                              (int)kind));
}

static struct rope_cuda rope_of(const struct rope_params *params)
{
    return (struct rope_cuda){
        params->style == ROPE_INTERLEAVED, params->head_dim,  params->n_rot, params->inv_freq,
        params->attention_factor,          params->row_tables};
}

int rope_cuda(struct stream *stream, struct tensor *x, const uint32_t *positions,
              const struct rope_params *params)
{
    struct rope_cuda p = rope_of(params);
    uint32_t n_rows = params->style == ROPE_NONE ? 0 : x->n_rows;
    QUEUE(stream, n_rows, "rope",
          cuda_launch_rope(s->handle, x->data, x->row_stride, n_rows, x->n_cols / p.head_dim,
                           positions, &p));
}

int kv_write_cuda(struct stream *stream, const struct kv_layer *layer, const struct tensor *k,
                  const struct tensor *v, const uint32_t *kv_slots)
{
    struct kv_cuda kv = kv_of(layer);
    QUEUE(stream, k->n_rows, "kv_write",
          cuda_launch_kv_write(s->handle, &kv, k->data, k->row_stride, v ? v->data : NULL,
                               v ? v->row_stride : 0, kv_slots, k->n_rows));
}

int rope_kv_cuda(struct stream *stream, struct tensor *q, struct tensor *k, const struct tensor *v,
                 const uint32_t *positions, const struct rope_params *params,
                 const struct kv_layer *layer, const uint32_t *kv_slots)
{
    struct rope_cuda p = rope_of(params);
    struct kv_cuda kv = kv_of(layer);
    QUEUE(stream, k->n_rows, "rope_kv",
          cuda_launch_rope_kv(s->handle, q->data, q->row_stride, q->n_cols / p.head_dim, positions,
                              &p, &kv, k->data, k->row_stride, v->data, v->row_stride, kv_slots,
                              k->n_rows));
}

int copy_heads_cuda(struct stream *stream, struct tensor *y, const struct tensor *x,
                    uint32_t n_heads, uint32_t width, uint32_t y_head, uint32_t y_first)
{
    QUEUE(stream, x->n_rows, "copy_heads",
          cuda_launch_copy_heads(s->handle, (float *)y->data + y_first, y->row_stride, x->data,
                                 x->row_stride, x->n_rows, n_heads, width, y_head));
}

int gather_rows_cuda(struct stream *stream, struct tensor *y, const struct tensor *x,
                     const uint32_t *index)
{
    QUEUE(stream, y->n_rows, "gather_rows",
          cuda_launch_gather_rows(s->handle, y->data, y->row_stride, x->data, x->row_stride, index,
                                  y->n_rows, y->n_cols));
}
