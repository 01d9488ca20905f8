/* The linears of all weights, as slots of the op table. Chooses the kernels for a weight's form,
 * and joins weights that can share a launch. */
#include "kernels/cuda/linear_cuda.h"

#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/linear_quant/linear_widen_cuda.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/cuda/weight_cuda.h"

/* Computes parts whose weights are alike (see alike()) in one call. */
static int run_alike(struct stream *s, const struct act *act, const struct linear_part *parts,
                     uint32_t n_parts)
{
    if (!weight_is_quant(parts[0].w))
        return linear_dense(s, act, parts, n_parts, DENSE_WHOLE, ACTIVATION_SILU);
    return linear_widens(s) ? linear_widen(s, act, parts, n_parts, false, ACTIVATION_SILU)
                            : linear_quant(s, act, parts, n_parts);
}

static bool alike(const struct weight *a, const struct weight *b)
{
    if (weight_is_quant(a) || weight_is_quant(b))
        return weight_is_quant(a) && weight_is_quant(b) && linear_quant_same(a, b);
    return linear_dense_same(a, b);
}

int linear_cuda(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w)
{
    const struct linear_part part = {.y = y, .w = w};
    return run_alike(s, act, &part, 1);
}

/* Computes the parts, whose sums have no factors. */
static int run_parts(struct stream *s, const struct act *act, const struct linear_part *parts,
                     uint32_t n_parts)
{
    uint32_t done = 0; /* a bit per part */
    int rc = 0;
    for (uint32_t p = 0; rc == 0 && p < n_parts; p++) {
        struct linear_part group[LINEAR_MAX_PARTS];
        uint32_t n = 0;
        for (uint32_t i = p; i < n_parts; i++)
            if ((done >> i & 1) == 0 && alike(parts[p].w, parts[i].w)) {
                group[n++] = parts[i];
                done |= 1u << i;
            }
        if (n > 0)
            rc = run_alike(s, act, group, n);
    }
    return rc;
}

/* The kernels add to a sum without a factor. A part with a factor is added afterwards. */
int linear_parts_cuda(struct stream *s, const struct act *act, const struct linear_part *parts,
                      uint32_t n_parts)
{
    struct linear_part plain[LINEAR_MAX_PARTS] = {{NULL}};
    for (uint32_t p = 0; p < n_parts; p++) {
        plain[p] = parts[p];
        if (parts[p].sum_factor != 0.0f)
            plain[p].sum = NULL;
    }
    int rc = run_parts(s, act, plain, n_parts);
    for (uint32_t p = 0; rc == 0 && p < n_parts; p++)
        if (parts[p].sum != NULL && parts[p].sum_factor != 0.0f)
            rc = add_cuda(s, parts[p].sum, parts[p].y, parts[p].sum_factor);
    return rc;
}

int linear_gated_cuda(struct stream *s, const struct act *act, const struct linear_part *gate,
                      const struct linear_part *up, enum activation kind)
{
    const struct linear_part parts[2] = {*gate, *up};
    if (alike(gate->w, up->w)) {
        if (!weight_is_quant(gate->w))
            return linear_dense(s, act, parts, 2, DENSE_GATED, kind);
        if (linear_widens(s))
            return linear_widen(s, act, parts, 2, true, kind);
        if (linear_quant_gates(act, gate, up))
            return linear_quant_gated(s, act, gate, up, kind);
    }
    int rc = run_parts(s, act, parts, 2);
    return rc != 0 ? rc : act_mul_cuda(s, gate->y, gate->y, up->y, kind);
}

int gated_prepare_cuda(struct stream *s, struct act *act, const struct linear_part *gate,
                       const struct linear_part *up, enum activation kind, uint32_t kinds,
                       const struct segments *segments, struct comm *comm)
{
    if (!weight_is_quant(gate->w) && alike(gate->w, up->w) &&
        linear_dense_gates(s, gate, up, kinds, comm))
        return linear_dense_gated(s, act, gate, up, kind);
    if (weight_is_quant(gate->w) && alike(gate->w, up->w) &&
        linear_act_gates_widened(s, act, gate->w->n_rows, kinds, comm)) {
        const struct linear_part parts[2] = {*gate, *up};
        int code = linear_widen(s, act, parts, 2, false, kind);
        return code != 0 ? code : linear_act_gate_widened(s, act, gate->y, up->y, kind);
    }
    int rc = linear_gated_cuda(s, act, gate, up, kind);
    return rc != 0 ? rc : act_prepare_cuda(s, act, gate->y, kinds, segments, comm);
}

int linear_partial_cuda(struct stream *s, struct tensor *partial, struct tensor *high,
                        const struct act *act, const struct weight *w)
{
    const struct linear_part part = {.y = partial, .w = w};
    if (weight_is_quant(w))
        return linear_quant_partial_cuda(s, partial, high, act, w);
    return linear_dense(s, act, &part, 1, DENSE_PARTIAL, ACTIVATION_SILU);
}

int linear_finish_cuda(struct stream *s, struct tensor *y, const struct tensor *partial,
                       const struct act *act, const struct weight *w)
{
    return weight_is_quant(w) ? linear_quant_finish_cuda(s, y, partial, act, w)
                              : linear_dense_finish(s, y, partial, act, w);
}
