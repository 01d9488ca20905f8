#include "base/status.h"
#include "kernels/device.h"
#include "kernels/ops.h"

static bool is_f32(const struct tensor *t, uint64_t n_cols)
{
    return t->dtype == DTYPE_F32 && t->n_cols == n_cols && t->row_stride >= t->n_cols;
}

/* A row has n_cols columns, and a state n_floats floats. */
static bool state_is_sound(const struct state_view *state, const struct state_rows *rows,
                           const struct tensor *y, uint64_t n_cols, uint64_t n_floats)
{
    return is_f32(y, n_cols) && y->n_rows == rows->n_rows && state->base != NULL &&
           state->stride >= n_floats &&
           (rows->n_rows == 0 || (rows->reads != NULL && rows->writes != NULL));
}

int op_conv(struct stream *s, struct tensor *y, const struct tensor *x,
            const struct state_view *state, const struct state_rows *rows,
            const struct conv_params *p)
{
    if (s->ops->conv == NULL)
        return STATUS_UNIMPLEMENTED;
    if (p->n_cols == 0 || p->width < 2 || p->width > RECURRENT_MAX_WIDTH || p->w == NULL ||
        !is_f32(x, p->n_cols) || x->n_rows != rows->n_rows ||
        !state_is_sound(state, rows, y, p->n_cols, (uint64_t)(p->width - 1) * p->n_cols))
        return STATUS_INTERNAL;
    return rows->n_rows == 0 ? 0 : s->ops->conv(s, y, x, state, rows, p);
}

static bool dim_is_sound(uint32_t dim)
{
    return dim > 0 && dim <= RECURRENT_MAX_DIM;
}

/* Returns true if every head finds its key head on this rank. */
static bool delta_heads_are_sound(const struct delta_params *p)
{
    if (p->n_heads == 0 || p->n_key_heads == 0 || p->n_all_key_heads == 0 ||
        p->n_all_heads % p->n_all_key_heads != 0 || p->first_head > p->n_all_heads ||
        p->n_heads > p->n_all_heads - p->first_head)
        return false;
    for (uint32_t h = 0; h < p->n_heads; h++)
        if (recurrent_key_head(p, h) >= p->n_key_heads)
            return false;
    return true;
}

int op_delta_net(struct stream *s, struct tensor *y, const struct tensor *qkv,
                 const struct tensor *beta, const struct tensor *dt, const struct state_view *state,
                 const struct state_rows *rows, const struct delta_params *p)
{
    if (s->ops->delta_net == NULL)
        return STATUS_UNIMPLEMENTED;
    uint64_t n_values = (uint64_t)p->n_heads * p->head_dim,
             n_keys = (uint64_t)p->n_key_heads * p->key_dim;
    if (!dim_is_sound(p->key_dim) || !dim_is_sound(p->head_dim) || !delta_heads_are_sound(p) ||
        p->a == NULL || p->dt_bias == NULL || !is_f32(qkv, 2 * n_keys + n_values) ||
        !is_f32(beta, p->n_heads) || !is_f32(dt, p->n_heads) || qkv->n_rows != rows->n_rows ||
        beta->n_rows != rows->n_rows || dt->n_rows != rows->n_rows || y->data == qkv->data ||
        !state_is_sound(state, rows, y, n_values, n_values * p->key_dim))
        return STATUS_INTERNAL;
    return rows->n_rows == 0 ? 0 : s->ops->delta_net(s, y, qkv, beta, dt, state, rows, p);
}

int op_ssm(struct stream *s, struct tensor *y, const struct tensor *xbc, const struct tensor *dt,
           const struct state_view *state, const struct state_rows *rows,
           const struct ssm_params *p)
{
    if (s->ops->ssm == NULL)
        return STATUS_UNIMPLEMENTED;
    uint64_t n_values = (uint64_t)p->n_heads * p->head_dim,
             n_keys = (uint64_t)p->n_groups * p->state_dim;
    if (!dim_is_sound(p->state_dim) || !dim_is_sound(p->head_dim) || p->n_heads == 0 ||
        p->n_groups == 0 || p->n_heads % p->n_groups != 0 || p->a == NULL || p->d == NULL ||
        p->dt_bias == NULL || !is_f32(xbc, n_values + 2 * n_keys) || !is_f32(dt, p->n_heads) ||
        xbc->n_rows != rows->n_rows || dt->n_rows != rows->n_rows || y->data == xbc->data ||
        !state_is_sound(state, rows, y, n_values, n_values * p->state_dim))
        return STATUS_INTERNAL;
    return rows->n_rows == 0 ? 0 : s->ops->ssm(s, y, xbc, dt, state, rows, p);
}

int op_copy_heads(struct stream *s, struct tensor *y, const struct tensor *x, uint32_t n_heads,
                  uint32_t width, uint32_t y_head, uint32_t y_first)
{
    if (s->ops->copy_heads == NULL)
        return STATUS_UNIMPLEMENTED;
    if (n_heads == 0 || width == 0 || width > y_head || y_first > y_head - width ||
        !is_f32(x, (uint64_t)n_heads * width) || !is_f32(y, (uint64_t)n_heads * y_head) ||
        x->n_rows != y->n_rows || x->data == y->data)
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->copy_heads(s, y, x, n_heads, width, y_head, y_first);
}
