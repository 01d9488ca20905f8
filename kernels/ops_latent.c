/* op_heads_linear(): linears of heads, for latent attention (ops.h). */
#include "base/status.h"
#include "kernels/act_header.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/weight_header.h"

/* The columns [begin, begin + n) of all rows. */
static struct tensor view_columns(const struct tensor *t, uint64_t begin, uint32_t n)
{
    struct tensor view = *t;
    view.data = (float *)t->data + begin;
    view.n_cols = n;
    return view;
}

int op_heads_in_turn(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                     const struct weight *const *heads, uint32_t n_heads, uint32_t y_head)
{
    int rc = 0;
    for (uint32_t h = 0; rc == 0 && h < n_heads; h++) {
        uint32_t k = heads[h]->k_local, n = heads[h]->n_rows;
        struct tensor from = view_columns(x, (uint64_t)h * k, k),
                      to = view_columns(y, (uint64_t)h * y_head, n);
        rc = op_act_prepare(s, act, &from, heads[h]->act_kind, NULL, NULL);
        if (rc == 0)
            rc = op_linear(s, &to, act, heads[h]);
    }
    return rc;
}

static bool heads_are_alike(const struct weight *const *heads, uint32_t n_heads)
{
    for (uint32_t h = 0; h < n_heads; h++)
        if (heads[h]->magic != WEIGHT_MAGIC || heads[h]->role != WEIGHT_LINEAR_COLUMN ||
            heads[h]->n_rows != heads[0]->n_rows || heads[h]->k_local != heads[0]->k_local ||
            heads[h]->act_kind != heads[0]->act_kind)
            return false;
    return n_heads > 0;
}

int op_heads_linear(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                    const struct weight *const *heads, uint32_t n_heads, uint32_t y_head)
{
    if (!heads_are_alike(heads, n_heads))
        return STATUS_INTERNAL;
    uint64_t n = heads[0]->n_rows, k = heads[0]->k_local;
    if (x->dtype != DTYPE_F32 || y->dtype != DTYPE_F32 || x->n_cols != n_heads * k ||
        x->row_stride < x->n_cols || y->row_stride < y->n_cols || y->n_rows != x->n_rows ||
        y->data == x->data || y_head < n || y->n_cols < (n_heads - 1) * (uint64_t)y_head + n ||
        x->n_rows > act->max_rows || k > act->max_k)
        return STATUS_INTERNAL;
    if (x->n_rows == 0)
        return 0;
    return s->ops->heads_linear != NULL ? s->ops->heads_linear(s, act, y, x, heads, n_heads, y_head)
                                        : op_heads_in_turn(s, act, y, x, heads, n_heads, y_head);
}
