/* The host side of the ops of recurrent.h. */
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/recurrent/recurrent_index.h"
#include "kernels/cuda/recurrent/recurrent_launch.h"
#include "kernels/cuda/table_cuda.h"

static struct recurrent_slots slots_of(const struct state_view *state,
                                       const struct state_rows *rows)
{
    return (struct recurrent_slots){state->base,  state->stride,  rows->reads,
                                    rows->writes, state->n_slots, rows->n_rows};
}

int conv_cuda(struct stream *stream, struct tensor *y, const struct tensor *x,
              const struct state_view *state, const struct state_rows *rows,
              const struct conv_params *p)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct recurrent_conv job = {.slots = slots_of(state, rows),
                                       .y = y->data,
                                       .x = x->data,
                                       .w = p->w,
                                       .bias = p->bias,
                                       .y_stride = y->row_stride,
                                       .x_stride = x->row_stride,
                                       .n_cols = p->n_cols,
                                       .width = p->width,
                                       .silu = p->silu};
    int rc = device_stream_enter(s);
    return rc != 0 ? rc : device_stream_check(s, "conv", cuda_launch_conv(s->handle, &job));
}

int delta_net_cuda(struct stream *stream, struct tensor *y, const struct tensor *qkv,
                   const struct tensor *beta, const struct tensor *dt,
                   const struct state_view *state, const struct state_rows *rows,
                   const struct delta_params *p)
{
    struct stream_cuda *s = stream_cuda(stream);
    const float *q = qkv->data;
    size_t n_keys = (size_t)p->n_key_heads * p->key_dim;
    const struct recurrent_span job = {.slots = slots_of(state, rows),
                                       .y = y->data,
                                       .q = q,
                                       .k = q + n_keys,
                                       .x = q + 2 * n_keys,
                                       .dt = dt->data,
                                       .beta = beta->data,
                                       .a = p->a,
                                       .dt_bias = p->dt_bias,
                                       .y_stride = y->row_stride,
                                       .x_stride = qkv->row_stride,
                                       .dt_stride = dt->row_stride,
                                       .beta_stride = beta->row_stride,
                                       .n_heads = p->n_heads,
                                       .dim = p->key_dim,
                                       .head_dim = p->head_dim,
                                       .first_head = p->first_head,
                                       .first_key = p->first_key,
                                       .n_all_keys = p->n_all_key_heads,
                                       .heads_per_key = p->n_all_heads / p->n_all_key_heads,
                                       .tiled = p->tiled,
                                       .norm_eps = p->norm_eps,
                                       .scale = p->scale};
    int rc = device_stream_enter(s);
    return rc != 0 ? rc
                   : device_stream_check(s, "delta_net", cuda_launch_delta_net(s->handle, &job));
}

int ssm_cuda(struct stream *stream, struct tensor *y, const struct tensor *xbc,
             const struct tensor *dt, const struct state_view *state, const struct state_rows *rows,
             const struct ssm_params *p)
{
    struct stream_cuda *s = stream_cuda(stream);
    const float *x = xbc->data;
    size_t n_values = (size_t)p->n_heads * p->head_dim, n_keys = (size_t)p->n_groups * p->state_dim;
    const struct recurrent_span job = {.slots = slots_of(state, rows),
                                       .y = y->data,
                                       .q = x + n_values + n_keys,
                                       .k = x + n_values,
                                       .x = x,
                                       .dt = dt->data,
                                       .a = p->a,
                                       .dt_bias = p->dt_bias,
                                       .d = p->d,
                                       .y_stride = y->row_stride,
                                       .x_stride = xbc->row_stride,
                                       .dt_stride = dt->row_stride,
                                       .n_heads = p->n_heads,
                                       .dim = p->state_dim,
                                       .head_dim = p->head_dim,
                                       .n_all_keys = p->n_groups,
                                       .heads_per_key = p->n_heads / p->n_groups};
    int rc = device_stream_enter(s);
    return rc != 0 ? rc : device_stream_check(s, "ssm", cuda_launch_ssm(s->handle, &job));
}
