#include "engine/forward/decoder_private.h"
#include "kernels/comm.h"

/* A layer: x += mixer(norm(x)); x += ffn(norm(x)). Each part reads the layer's facts. A step of a
 * model without a feature queues no op for the feature. */

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

/* --- norms --- */

int decoder_norm(struct decoder *dec, const struct layer *at, enum arch_slot norm, struct tensor *y,
                 const struct tensor *x)
{
    const float *w = at->vector[norm];
    if (dec->arch->norm == ARCH_NORM_LAYER)
        return op_layer_norm(dec->stream, y, x, w, at->vector[norm + 1], dec->shape->norm_eps);
    return op_rms_norm(dec->stream, y, x, w, dec->shape->norm_eps);
}

int decoder_norm_prepare(struct decoder *dec, const struct layer *at, enum arch_slot norm,
                         struct tensor *h, const struct tensor *x, uint32_t kinds)
{
    const struct norm_params p = {.is_centred = dec->arch->norm == ARCH_NORM_LAYER,
                                  .w = at->vector[norm],
                                  .bias = at->vector[norm + 1],
                                  .eps = dec->shape->norm_eps};
    if (!p.w)
        return op_act_prepare(dec->stream, dec->act, x, kinds, NULL, NULL);
    return op_norm_prepare(dec->stream, dec->act, h, x, &p, kinds);
}

static int norm_rows(struct decoder *dec, const struct layer *at, struct tensor *x, const float *w,
                     const float *bias)
{
    if (at->facts->mixer->head_norm == ARCH_NORM_LAYER)
        return op_layer_norm(dec->stream, x, x, w, bias, dec->shape->norm_eps);
    return op_rms_norm(dec->stream, x, x, w, dec->shape->norm_eps);
}

/* Norms each head of x[m, n_heads · dim] by itself, in place. */
static int norm_heads(struct decoder *dec, const struct layer *at, const struct tensor *x,
                      uint32_t dim, const float *w, const float *bias)
{
    struct tensor heads = view(x->data, x->n_rows * (x->n_cols / dim), dim);
    return norm_rows(dec, at, &heads, w, bias);
}

/* The same with weights for each head; `first` is the number of the first head of x. */
static int norm_own_heads(struct decoder *dec, const struct layer *at, const struct tensor *x,
                          uint32_t first, const float *w, const float *bias)
{
    size_t at_w = (size_t)first * at->facts->k_dim;
    const struct norm_params p = {.is_centred = at->facts->mixer->head_norm == ARCH_NORM_LAYER,
                                  .w = w + at_w,
                                  .bias = bias ? bias + at_w : NULL,
                                  .eps = dec->shape->norm_eps};
    return op_norm_heads(dec->stream, x, x->n_cols / at->facts->k_dim, &p);
}

/* Norms the queries, or the keys, in place. Does nothing for models without these norms. */
static int norm_part(struct decoder *dec, const struct layer *at, enum arch_slot norm,
                     struct tensor *x)
{
    const struct arch_mixer *mixer = at->facts->mixer;
    const float *w = at->vector[norm], *bias = at->vector[norm + 1];
    if (mixer->head_norms == ARCH_HEAD_NORMS_BARE)
        return norm_heads(dec, at, x, at->facts->k_dim, dec->mem.ones, NULL);
    if (!w)
        return 0;
    if (mixer->head_norm_scope == ARCH_SCOPE_WHOLE)
        return norm_rows(dec, at, x, w, bias);
    if (mixer->head_norm_scope == ARCH_SCOPE_OWN_HEAD)
        return norm_own_heads(
            dec, at, x, norm == ARCH_ATTN_Q_NORM ? at->split->head_begin : at->split->kv_begin, w,
            bias);
    return norm_heads(dec, at, x, at->facts->k_dim, w, bias);
}

static int norm_queries_keys(struct decoder *dec, const struct layer *at, struct tensor *q,
                             struct tensor *k)
{
    int rc = norm_part(dec, at, ARCH_ATTN_Q_NORM, q);
    return rc ? rc : norm_part(dec, at, ARCH_ATTN_K_NORM, k);
}

/* --- linears --- */

/* y = W·act + bias, for a weight that is split by outputs or not split. */
static struct linear_part part_of(const struct layer *at, enum arch_slot weight, struct tensor *y)
{
    return (struct linear_part){.y = y, .w = at->linear[weight], .bias = at->vector[weight + 1]};
}

/* Weights that are read soon: those of n ≤ LINEAR_MAX_PARTS slots that the layer has. */
struct soon {
    const struct layer *layer;
    const enum arch_slot *slots;
    uint32_t n;
};

static uint32_t weights_of(const struct soon *soon, const struct weight *out[LINEAR_MAX_PARTS])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < soon->n; i++)
        if (soon->layer->linear[soon->slots[i]])
            out[n++] = soon->layer->linear[soon->slots[i]];
    return n;
}

static void will_read(struct decoder *dec, const struct soon *soon)
{
    const struct weight *w[LINEAR_MAX_PARTS];
    uint32_t n = weights_of(soon, w);
    if (n)
        op_will_read(dec->stream, w, n);
}

/* Returns the weights that an FFN reads first. The experts themselves are announced once they are
 * chosen. */
static struct soon soon_ffn(const struct layer *at)
{
    static const enum arch_slot dense[] = {ARCH_FFN_UP, ARCH_FFN_GATE};
    static const enum arch_slot experts[] = {ARCH_ROUTER, ARCH_SHARED_GATE, ARCH_SHARED_UP};
    return at->experts ? (struct soon){at, experts, ARCH_N_OF(experts)}
                       : (struct soon){at, dense, ARCH_N_OF(dense)};
}

static struct soon soon_out(const struct layer *at)
{
    static const enum arch_slot out[] = {ARCH_ATTN_OUT};
    return (struct soon){at, out, 1};
}

/* Returns the weights that the next layer, or the head, reads first. */
static struct soon soon_next(const struct decoder *dec, const struct layer *next)
{
    static const enum arch_slot qkv[] = {ARCH_ATTN_Q, ARCH_ATTN_K, ARCH_ATTN_V};
    static const enum arch_slot head[] = {ARCH_OUTPUT};
    if (!next) /* last layer of the last stage */
        return (struct soon){&dec->globals, head, 1};
    return next->facts->mixer->mixing == ARCH_MIXING_ATTENTION
               ? (struct soon){next, qkv, ARCH_N_OF(qkv)}
               : soon_ffn(next);
}

uint32_t decoder_reads_next(const struct decoder *dec, const struct layer *next,
                            const struct weight *out[LINEAR_MAX_PARTS])
{
    const struct soon soon = soon_next(dec, next);
    return weights_of(&soon, out);
}

/* Prepares `from` for a weight that is split by inputs. */
static int row_prepare(struct decoder *dec, const struct linear_part *what,
                       const struct segments *segments, const struct tensor *from)
{
    return op_act_prepare(dec->stream, dec->act, from, weight_act_kind(what->w), segments,
                          dec->comm);
}

int decoder_linear_row(struct decoder *dec, const struct linear_part *what)
{
    struct tensor partial = view(dec->mem.partial, what->y->n_rows, what->y->n_cols);
    if (!dec->comm || dec->comm->size == 1)
        return op_linear_parts(dec->stream, dec->act, what, 1);
    int rc = op_linear_row(dec->stream, what->y, dec->act, what->w, &partial, dec->comm);
    if (!rc && what->bias)
        rc = op_add_bias(dec->stream, what->y, what->bias);
    float factor = what->sum_factor != 0 ? what->sum_factor : 1;
    return rc || !what->sum ? rc : op_add_scaled(dec->stream, what->sum, what->y, factor);
}

int decoder_add_branch(struct decoder *dec, const struct layer *at, struct tensor *y,
                       enum arch_slot post_norm, struct tensor *sum)
{
    const struct scale_params scale = {.factor = dec->shape->residual_scale};
    int rc = at->vector[post_norm] ? decoder_norm(dec, at, post_norm, y, y) : 0;
    if (!rc && sum)
        return op_add_scaled(dec->stream, sum, y, scale.factor);
    return rc || scale.factor == 1 ? rc : op_scale(dec->stream, y, NULL, &scale);
}

/* Ends a branch of the layer: y = W·act + bias. Then y is normed, if the model has such a norm, and
 * added to `sum` (NULL: y is the result). */
static int end_branch(struct decoder *dec, const struct layer *at, struct linear_part what,
                      enum arch_slot post_norm, struct tensor *sum)
{
    bool adds = !at->vector[post_norm] && (sum || dec->shape->residual_scale == 1);
    what.sum = adds ? sum : NULL;
    what.sum_factor = dec->shape->residual_scale != 1 ? dec->shape->residual_scale : 0;
    int rc = decoder_linear_row(dec, &what);
    return rc || adds ? rc : decoder_add_branch(dec, at, what.y, post_norm, sum);
}

/* --- attention --- */

/* Computes queries, keys and values of the prepared input. */
static int project(struct decoder *dec, const struct layer *at, struct tensor *q, struct tensor *k,
                   struct tensor *v)
{
    const struct linear_part parts[] = {part_of(at, ARCH_ATTN_Q, q), part_of(at, ARCH_ATTN_K, k),
                                        part_of(at, ARCH_ATTN_V, v)};
    bool has_values = at->linear[ARCH_ATTN_V] != NULL;
    int rc = op_linear_parts(dec->stream, dec->act, parts, has_values ? 3 : 2);
    if (!rc && !has_values)
        rc = dec->stream->device->ops->copy(dec->stream, v->data, k->data,
                                            (size_t)k->n_rows * k->n_cols * sizeof(float));
    if (!rc && at->facts->mixer->bare_value_norm)
        rc = norm_heads(dec, at, v, at->facts->v_dim, dec->mem.ones, NULL);
    const struct scale_params scale = {.factor = dec->shape->value_scale};
    return rc || scale.factor == 1 ? rc : op_scale(dec->stream, v, NULL, &scale);
}

/* The rank's own heads of rows that hold all heads. */
static void take_own_heads(struct tensor *rows, uint32_t first, uint32_t n, uint32_t dim)
{
    rows->data = (float *)rows->data + (size_t)first * dim;
    rows->n_cols = n * dim;
}

/* Rotates queries and keys, and stores keys and values. */
static int rotate_and_store(struct decoder *dec, const struct layer *at,
                            const struct attention_rows *rows, struct tensor *q, struct tensor *k,
                            struct tensor *v)
{
    const struct layer_split *split = at->split;
    if (!at->facts->mixer->norm_after_rope) {
        int rc = norm_queries_keys(dec, at, q, k);
        if (split->projects_all_heads) {
            take_own_heads(q, split->head_begin, split->n_heads, at->facts->k_dim);
            take_own_heads(k, split->kv_begin, split->n_kv_heads, at->facts->k_dim);
        }
        return rc ? rc
                  : op_rope_kv(dec->stream, q, k, v, rows->positions, at->rope, &at->kv,
                               rows->kv_slots);
    }
    int rc = op_rope(dec->stream, q, rows->positions, at->rope);
    if (!rc)
        rc = op_rope(dec->stream, k, rows->positions, at->rope);
    if (!rc)
        rc = norm_queries_keys(dec, at, q, k);
    return rc ? rc : op_kv_write(dec->stream, &at->kv, k, v, rows->kv_slots);
}

/* Queries, keys and values of a step's rows. */
struct projections {
    struct tensor q, k, v;
};

/* Computes them from the layer's normed and prepared input. */
static int project_rows(struct decoder *dec, const struct layer *at, uint32_t m,
                        struct projections *out)
{
    const struct layer_split *split = at->split;
    uint32_t k_dim = at->facts->k_dim;
    bool all = split->projects_all_heads;
    out->q = view(dec->mem.q, m, (all ? at->facts->n_heads : split->n_heads) * k_dim);
    out->k = view(dec->mem.k, m, (all ? at->facts->n_kv_heads : split->n_kv_heads) * k_dim);
    out->v = view(dec->mem.v, m, split->n_kv_heads * at->facts->v_dim);
    return project(dec, at, &out->q, &out->k, &out->v);
}

/* out[m, hidden] = attention over the projections; added to `sum`. `then`: the weights that are
 * read after those of attention. */
static int attend(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                  struct projections *in, const struct soon *then, struct tensor *out,
                  struct tensor *sum)
{
    const struct layer_split *split = at->split;
    struct tensor mixed = view(dec->mem.mixed, out->n_rows, split->n_heads * at->facts->v_dim);
    struct linear_part o = part_of(at, ARCH_ATTN_OUT, out);
    int rc = rotate_and_store(dec, at, rows, &in->q, &in->k, &in->v);
    if (!rc && at->facts->mixer->has_temperature && dec->temperature.by_position)
        rc = op_scale(dec->stream, &in->q, rows->positions, &dec->temperature);
    if (!rc)
        rc = op_attention(dec->stream, &mixed, &in->q, &at->kv, rows, &at->attention);
    will_read(dec, then);
    if (!rc)
        rc = row_prepare(dec, &o, &split->mixed, &mixed);
    return rc ? rc : end_branch(dec, at, o, ARCH_ATTN_POST_NORM, sum);
}

/* out[m, hidden] = attention over norm(x); added to `sum`. */
static int normed_attention(struct decoder *dec, const struct layer *at,
                            const struct attention_rows *rows, const struct tensor *x,
                            struct tensor *out, struct tensor *sum)
{
    const struct soon o = soon_out(at), ffn = soon_ffn(at);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct projections in;
    int rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->attention_kinds);
    will_read(dec, &o);
    if (!rc)
        rc = project_rows(dec, at, x->n_rows, &in);
    return rc ? rc : attend(dec, at, rows, &in, &ffn, out, sum);
}

/* --- FFN --- */

/* out[m, hidden] = FFN over the prepared input; added to `sum`. `then`: the weights that are read
 * after those of the FFN. */
static int dense_ffn(struct decoder *dec, const struct layer *at, const struct soon *then,
                     struct tensor *out, struct tensor *sum)
{
    static const enum arch_slot down_slot[] = {ARCH_FFN_DOWN};
    const struct soon down_soon = {at, down_slot, 1};
    const struct segments *segments = &at->split->ffn;
    uint32_t m = out->n_rows, n = segments_len(segments);
    struct tensor up_y = view(dec->mem.up, m, n), gate_y = view(dec->mem.gate, m, n);
    struct linear_part up = part_of(at, ARCH_FFN_UP, &up_y);
    struct linear_part down = part_of(at, ARCH_FFN_DOWN, out);
    enum activation activation = shape_activation(dec->shape, at->facts);
    int rc = 0;
    will_read(dec, &down_soon);
    if (at->facts->ffn->form == ARCH_FFN_GATED) {
        struct linear_part gate = part_of(at, ARCH_FFN_GATE, &gate_y);
        rc = op_gated_prepare(dec->stream, dec->act, &gate, &up, activation,
                              weight_act_kind(down.w), segments, dec->comm);
    } else {
        rc = op_linear_parts(dec->stream, dec->act, &up, 1);
        if (!rc)
            rc = op_act_mul(dec->stream, &gate_y, &up_y, NULL, activation);
        if (!rc)
            rc = row_prepare(dec, &down, segments, &gate_y);
    }
    will_read(dec, then);
    return rc ? rc : end_branch(dec, at, down, ARCH_FFN_POST_NORM, sum);
}

/* out[m, hidden] = FFN over norm(x); added to `sum`. */
static int normed_ffn(struct decoder *dec, const struct layer *at, const struct layer *next,
                      enum arch_slot norm, const struct tensor *x, struct tensor *out,
                      struct tensor *sum)
{
    const struct soon then = soon_next(dec, next);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    if (at->experts)
        return decoder_run_experts(dec, at, next, norm, x, out, sum);
    int rc = decoder_norm_prepare(dec, at, norm, &h, x, at->ffn_kinds);
    return rc ? rc : dense_ffn(dec, at, &then, out, sum);
}

/* --- a layer --- */

/* x += attention(h) + ffn(h), where h = norm(x) is normed and prepared once. So the FFN runs before
 * attention prepares other rows. */
static int run_joined(struct decoder *dec, const struct layer *at, const struct layer *next,
                      const struct attention_rows *rows, struct tensor *x)
{
    const struct soon ffn = soon_ffn(at), o = soon_out(at), then = soon_next(dec, next);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct tensor from_attention = view(dec->mem.y_attention, x->n_rows, x->n_cols);
    struct tensor from_ffn = view(dec->mem.y_ffn, x->n_rows, x->n_cols);
    struct projections in;
    int rc =
        decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->attention_kinds | at->ffn_kinds);
    will_read(dec, &ffn);
    if (!rc)
        rc = project_rows(dec, at, x->n_rows, &in);
    if (!rc)
        rc = dense_ffn(dec, at, &o, &from_ffn, NULL);
    if (!rc)
        rc = attend(dec, at, rows, &in, &then, &from_attention, x);
    return rc ? rc : op_add(dec->stream, x, &from_ffn);
}

/* x += attention(norm(x)) + ffn(norm(x)). Without an FFN norm, the FFN has attention's. */
static int run_parallel(struct decoder *dec, const struct layer *at, const struct layer *next,
                        const struct attention_rows *rows, struct tensor *x)
{
    bool has_ffn_norm = at->vector[ARCH_FFN_NORM] != NULL;
    struct tensor from_attention = view(dec->mem.y_attention, x->n_rows, x->n_cols);
    struct tensor from_ffn = view(dec->mem.y_ffn, x->n_rows, x->n_cols);
    if (!has_ffn_norm && !at->experts)
        return run_joined(dec, at, next, rows, x);
    int rc = normed_attention(dec, at, rows, x, &from_attention, NULL);
    if (!rc)
        rc = normed_ffn(dec, at, next, has_ffn_norm ? ARCH_FFN_NORM : ARCH_ATTN_NORM, x, &from_ffn,
                        NULL);
    if (!rc)
        rc = op_add(dec->stream, x, &from_attention);
    return rc ? rc : op_add(dec->stream, x, &from_ffn);
}

int decoder_run_layer(struct decoder *dec, const struct layer *at, const struct layer *next,
                      const struct attention_rows *rows, struct tensor *x)
{
    struct tensor y = view(dec->mem.y_attention, x->n_rows, x->n_cols);
    bool has_attention = at->facts->mixer->mixing == ARCH_MIXING_ATTENTION;
    bool has_ffn = at->facts->ffn->body != ARCH_FFN_NONE;
    if (dec->shape->residual == ARCH_RESIDUAL_PARALLEL && has_attention && has_ffn)
        return run_parallel(dec, at, next, rows, x);
    int rc = has_attention ? normed_attention(dec, at, rows, x, &y, x) : 0;
    y.data = dec->mem.y_ffn;
    return rc || !has_ffn ? rc : normed_ffn(dec, at, next, ARCH_FFN_NORM, x, &y, x);
}
