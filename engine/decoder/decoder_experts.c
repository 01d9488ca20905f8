#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"
#include "kernels/comm.h"

/* The FFN of a layer with experts. The router chooses experts for each row; the op `experts` adds
 * their outputs. Shared experts are a dense MLP beside them, for every row. */

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

int decoder_experts_open(struct decoder *dec, struct error *err)
{
    uint32_t n = dec->shape->experts.n;
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        struct layer *at = &dec->layers[i];
        if (at->facts->ffn->body != ARCH_FFN_EXPERTS && at->facts->ffn->body != ARCH_FFN_BOTH)
            continue;
        at->experts = calloc(1, sizeof(*at->experts) + 3 * n * sizeof(at->experts->by_expert[0]));
        if (!at->experts)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u experts", n);
    }
    return 0;
}

/* The weights that are read after those of the experts. */
static void set_then(const struct decoder *dec, struct layer *at, const struct layer *next)
{
    struct experts *own = &at->experts->weights;
    if (!at->linear[ARCH_SHARED_UP]) {
        own->n_then = decoder_reads_next(dec, next, own->then);
        return;
    }
    if (at->linear[ARCH_SHARED_GATE])
        own->then[own->n_then++] = at->linear[ARCH_SHARED_GATE];
    own->then[own->n_then++] = at->linear[ARCH_SHARED_UP];
}

static void set_experts(const struct decoder *dec, struct layer *at, const struct layer *next)
{
    const struct model_experts *e = &dec->shape->experts;
    const struct arch_ffn *ffn = at->facts->ffn;
    struct layer_experts *own = at->experts;
    own->weights = (struct experts){
        .n = e->n,
        .gate = ffn->form == ARCH_FFN_GATED ? own->by_expert : NULL,
        .up = own->by_expert + e->n,
        .down = own->by_expert + 2 * e->n,
        .gate_bias = at->vector[ARCH_EXPERT_GATE_BIAS],
        .up_bias = at->vector[ARCH_EXPERT_UP_BIAS],
        .down_bias = at->vector[ARCH_EXPERT_DOWN_BIAS],
        .activation = shape_activation(dec->shape, at->facts),
        .weighs_input = ffn->router.weight == ARCH_EXPERT_WEIGHT_INPUT,
        .segments = &at->split->expert_ffn,
    };
    set_then(dec, at, next);
    own->router = (struct router_params){
        .score = e->score,
        .n_experts = e->n,
        .n_used = e->n_used,
        .bias = at->vector[ARCH_ROUTER_SELECT],
        .n_groups = e->n_groups,
        .n_used_groups = e->n_groups_used,
        .group_score = e->group_score,
        .renormalise = e->renormalise,
        .min_sum = ffn->router.min_sum,
        .add_sum = ffn->router.add_sum,
        .scale = e->scale,
        .expert_scale = at->vector[ARCH_ROUTER_EXPERT_SCALE],
    };
}

int decoder_experts_start(struct decoder *dec, struct error *err)
{
    const struct decoder_memory *mem = &dec->mem;
    const struct rank_plan *plan = dec->cfg.plan;
    const struct model_experts *e = &dec->shape->experts;
    uint32_t hidden = dec->shape->hidden_dim, ffn = plan->split.most.expert_ffn;
    if (!e->n)
        return 0;
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        struct layer *at = &dec->layers[i];
        if (!at->experts)
            continue;
        set_experts(dec, at, i + 1 < dec->split.n_layers ? at + 1 : NULL);
        error_clear(err);
        int rc = op_experts_bind(dec->stream->ops, &at->experts->weights, err);
        if (rc)
            return rc;
    }
    experts_routes_init(&dec->experts.routes, mem->routes, plan->steps.max_rows, e->n_used, e->n);
    dec->experts.work = (struct expert_work){
        .rows = view(mem->pair_rows, mem->n_pairs, hidden),
        .gate = view(mem->pair_gate, mem->n_pairs, ffn),
        .up = view(mem->pair_up, mem->n_pairs, ffn),
        .partial = view(mem->pair_partial, mem->n_pairs, hidden),
    };
    return dec->stream->ops->act_create(dec->stream->device, mem->n_pairs,
                                        decoder_memory_expert_k(plan, dec->shape),
                                        &dec->experts.work.act, err);
}

void decoder_experts_close(struct decoder *dec)
{
    if (dec->experts.work.act)
        dec->stream->ops->act_destroy(dec->experts.work.act);
    for (uint32_t i = 0; dec->layers && i < dec->split.n_layers; i++)
        free(dec->layers[i].experts);
}

/* y = W·act + bias. */
static int linear(struct decoder *dec, const struct layer *at, enum arch_slot weight,
                  const float *bias, struct tensor *y)
{
    const struct linear_part part = {.y = y, .w = at->linear[weight], .bias = bias};
    return op_linear_parts(dec->stream, dec->act, &part, 1);
}

/* Adds the shared experts' output over the prepared rows to `out`. `y` is scratch. */
static int add_shared(struct decoder *dec, const struct layer *at, const struct layer *next,
                      struct tensor *y, struct tensor *out)
{
    const struct segments *segments = &at->split->shared_ffn;
    enum activation activation = shape_activation(dec->shape, at->facts);
    uint32_t m = out->n_rows, n = segments_len(segments);
    struct tensor up_y = view(dec->mem.up, m, n), gate_y = view(dec->mem.gate, m, n);
    struct tensor share = view(dec->mem.shared_gate, m, 1);
    const struct scale_params scale = {.factor = 1, .gate = &share};
    struct linear_part up = {.y = &up_y, .w = at->linear[ARCH_SHARED_UP]};
    struct linear_part gate = {.y = &gate_y, .w = at->linear[ARCH_SHARED_GATE]};
    struct linear_part down = {.y = y, .w = at->linear[ARCH_SHARED_DOWN]};
    bool has_share = at->linear[ARCH_SHARED_ROUTER] != NULL;
    const struct weight *then[LINEAR_MAX_PARTS];
    uint32_t n_then = decoder_reads_next(dec, next, then);
    op_will_read(dec->stream, &down.w, 1);
    int rc = has_share ? linear(dec, at, ARCH_SHARED_ROUTER, NULL, &share) : 0;
    if (!rc && gate.w)
        rc = op_gated_prepare(dec->stream, dec->act, &gate, &up, activation,
                              weight_act_kind(down.w), segments, dec->comm);
    if (!rc && !gate.w)
        rc = op_linear_parts(dec->stream, dec->act, &up, 1);
    if (!rc && !gate.w)
        rc = op_act_mul(dec->stream, &gate_y, &up_y, NULL, activation);
    if (!rc && !gate.w)
        rc = op_act_prepare(dec->stream, dec->act, &gate_y, weight_act_kind(down.w), segments,
                            dec->comm);
    if (n_then)
        op_will_read(dec->stream, then, n_then);
    if (!rc)
        rc = decoder_linear_row(dec, &down);
    if (!rc && has_share)
        rc = op_scale(dec->stream, y, NULL, &scale);
    return rc ? rc : op_add(dec->stream, out, y);
}

/* The formats of activations that the router and the shared experts read. */
static uint32_t kinds_of(const struct layer *at)
{
    static const enum arch_slot slots[] = {ARCH_ROUTER, ARCH_SHARED_GATE, ARCH_SHARED_UP,
                                           ARCH_SHARED_ROUTER};
    uint32_t kinds = 0;
    for (uint32_t i = 0; i < ARCH_N_OF(slots); i++)
        if (at->linear[slots[i]])
            kinds |= weight_act_kind(at->linear[slots[i]]);
    return kinds;
}

/* Chooses the experts of m prepared rows. */
static int route(struct decoder *dec, const struct layer *at, uint32_t m)
{
    struct tensor logits = view(dec->mem.router_logits, m, dec->shape->experts.n);
    int rc = linear(dec, at, ARCH_ROUTER, at->vector[ARCH_ROUTER_BIAS], &logits);
    return rc ? rc
              : op_router_topk(dec->stream, &dec->experts.routes, &logits, &at->experts->router);
}

/* The same for a router whose input is norm(x) / sqrt(hidden). `h` is scratch. */
static int route_by_own_norm(struct decoder *dec, const struct layer *at, const struct tensor *x,
                             struct tensor *h)
{
    const struct scale_params scale = {.factor = (float)(1 / sqrt(dec->shape->hidden_dim))};
    uint32_t kinds = weight_act_kind(at->linear[ARCH_ROUTER]);
    int rc = decoder_norm(dec, at, ARCH_ROUTER_NORM, h, x);
    if (!rc)
        rc = op_scale(dec->stream, h, NULL, &scale);
    if (!rc)
        rc = op_act_prepare(dec->stream, dec->act, h, kinds, NULL, NULL);
    return rc ? rc : route(dec, at, x->n_rows);
}

int decoder_run_experts(struct decoder *dec, const struct layer *at, const struct layer *next,
                        enum arch_slot norm, enum arch_slot post_norm, const struct tensor *x,
                        struct tensor *out, struct tensor *sum)
{
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct decoder_experts *e = &dec->experts;
    const struct tensor *from = at->vector[norm] ? &h : x;
    bool has_own_input = at->vector[ARCH_ROUTER_NORM] != NULL;
    int rc = has_own_input ? route_by_own_norm(dec, at, x, &h) : 0;
    if (!rc && at->vector[norm])
        rc = decoder_norm(dec, at, norm, &h, x);
    if (!rc)
        rc = op_act_prepare(dec->stream, dec->act, from, kinds_of(at), NULL, NULL);
    if (!rc && !has_own_input)
        rc = route(dec, at, x->n_rows);
    if (!rc)
        rc = op_experts(dec->stream, out, from, &e->routes, &at->experts->weights, &e->work,
                        dec->comm);
    if (!rc && at->linear[ARCH_SHARED_UP])
        rc = add_shared(dec, at, next, &h, out);
    return rc ? rc : decoder_add_branch(dec, at, out, post_norm, sum);
}
