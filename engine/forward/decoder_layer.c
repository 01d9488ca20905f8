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
    uint32_t dim = at->facts->k_dim;
    int rc = 0;
    for (uint32_t h = 0; !rc && h < x->n_cols / dim; h++) {
        struct tensor head = *x;
        size_t at_w = (size_t)(first + h) * dim;
        head.data = (float *)x->data + (size_t)h * dim;
        head.n_cols = dim;
        rc = norm_rows(dec, at, &head, w + at_w, bias ? bias + at_w : NULL);
    }
    return rc;
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

/* Announces the weights of those of n ≤ LINEAR_MAX_PARTS slots that the layer has. */
static void will_read(struct decoder *dec, const struct layer *at, const enum arch_slot *slots,
                      uint32_t n)
{
    const struct weight *w[LINEAR_MAX_PARTS];
    uint32_t n_weights = 0;
    for (uint32_t i = 0; i < n; i++)
        if (at->linear[slots[i]])
            w[n_weights++] = at->linear[slots[i]];
    if (n_weights)
        op_will_read(dec->stream, w, n_weights);
}

static void will_read_ffn(struct decoder *dec, const struct layer *at)
{
    static const enum arch_slot slots[] = {ARCH_FFN_UP, ARCH_FFN_GATE};
    will_read(dec, at, slots, ARCH_N_OF(slots));
}

/* Announces the weights that the next layer, or the head, reads first. */
static void will_read_next(struct decoder *dec, const struct layer *next)
{
    static const enum arch_slot slots[] = {ARCH_ATTN_Q, ARCH_ATTN_K, ARCH_ATTN_V};
    static const enum arch_slot head[] = {ARCH_OUTPUT};
    if (!next)
        will_read(dec, &dec->globals, head, 1); /* last layer of the last stage */
    else if (next->facts->mixer->mixing == ARCH_MIXING_ATTENTION)
        will_read(dec, next, slots, ARCH_N_OF(slots));
    else
        will_read_ffn(dec, next);
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
    return rc || !what->sum ? rc : op_add(dec->stream, what->sum, what->y);
}

int decoder_add_branch(struct decoder *dec, const struct layer *at, struct tensor *y,
                       enum arch_slot post_norm, struct tensor *sum)
{
    const struct scale_params scale = {.factor = dec->shape->residual_scale};
    int rc = at->vector[post_norm] ? decoder_norm(dec, at, post_norm, y, y) : 0;
    if (!rc && scale.factor != 1)
        rc = op_scale(dec->stream, y, NULL, &scale);
    return rc || !sum ? rc : op_add(dec->stream, sum, y);
}

/* Ends a branch of the layer: y = W·act + bias. Then y is normed, if the model has such a norm, and
 * added to `sum` (NULL: y is the result). */
static int end_branch(struct decoder *dec, const struct layer *at, struct linear_part what,
                      enum arch_slot post_norm, struct tensor *sum)
{
    bool adds = !at->vector[post_norm] && dec->shape->residual_scale == 1;
    what.sum = adds ? sum : NULL;
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
    return rc;
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

/* out[m, hidden] = attention over the layer's normed and prepared input; added to `sum`. */
static int attention(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                     struct tensor *out, struct tensor *sum)
{
    static const enum arch_slot out_slot[] = {ARCH_ATTN_OUT};
    const struct layer_split *split = at->split;
    uint32_t m = out->n_rows, k_dim = at->facts->k_dim, v_dim = at->facts->v_dim;
    bool all = split->projects_all_heads;
    struct tensor q = view(dec->mem.q, m, (all ? at->facts->n_heads : split->n_heads) * k_dim);
    struct tensor k =
        view(dec->mem.k, m, (all ? at->facts->n_kv_heads : split->n_kv_heads) * k_dim);
    struct tensor v = view(dec->mem.v, m, split->n_kv_heads * v_dim);
    struct tensor mixed = view(dec->mem.mixed, m, split->n_heads * v_dim);
    struct linear_part o = part_of(at, ARCH_ATTN_OUT, out);
    will_read(dec, at, out_slot, 1);
    int rc = project(dec, at, &q, &k, &v);
    if (!rc)
        rc = rotate_and_store(dec, at, rows, &q, &k, &v);
    if (!rc && at->facts->mixer->has_temperature && dec->temperature.by_position)
        rc = op_scale(dec->stream, &q, rows->positions, &dec->temperature);
    if (!rc)
        rc = op_attention(dec->stream, &mixed, &q, &at->kv, rows, &at->attention);
    will_read_ffn(dec, at);
    if (!rc)
        rc = row_prepare(dec, &o, &split->mixed, &mixed);
    return rc ? rc : end_branch(dec, at, o, ARCH_ATTN_POST_NORM, sum);
}

/* --- FFN --- */

/* out[m, hidden] = FFN over the prepared input; added to `sum`. `next` (may be NULL): the layer
 * whose weights are read afterwards. */
static int dense_ffn(struct decoder *dec, const struct layer *at, const struct layer *next,
                     struct tensor *out, struct tensor *sum)
{
    static const enum arch_slot down_slot[] = {ARCH_FFN_DOWN};
    const struct segments *segments = &at->split->ffn;
    uint32_t m = out->n_rows, n = segments_len(segments);
    struct tensor up_y = view(dec->mem.up, m, n), gate_y = view(dec->mem.gate, m, n);
    struct linear_part up = part_of(at, ARCH_FFN_UP, &up_y);
    struct linear_part down = part_of(at, ARCH_FFN_DOWN, out);
    enum activation activation = shape_activation(dec->shape, at->facts);
    int rc = 0;
    will_read(dec, at, down_slot, 1);
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
    will_read_next(dec, next);
    return rc ? rc : end_branch(dec, at, down, ARCH_FFN_POST_NORM, sum);
}

/* The same over norm(x). */
static int normed_ffn(struct decoder *dec, const struct layer *at, const struct layer *next,
                      enum arch_slot norm, const struct tensor *x, struct tensor *out,
                      struct tensor *sum)
{
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    int rc = decoder_norm_prepare(dec, at, norm, &h, x, at->ffn_kinds);
    return rc ? rc : dense_ffn(dec, at, next, out, sum);
}

/* In a parallel layer without an FFN norm, the FFN reads the attention's norm. */
static enum arch_slot ffn_norm(const struct layer *at, bool parallel)
{
    return parallel && !at->vector[ARCH_FFN_NORM] ? ARCH_ATTN_NORM : ARCH_FFN_NORM;
}

int decoder_run_layer(struct decoder *dec, const struct layer *at, const struct layer *next,
                      const struct attention_rows *rows, struct tensor *x)
{
    uint32_t m = x->n_rows, hidden = x->n_cols;
    struct tensor h = view(dec->mem.h, m, hidden);
    struct tensor from_attention = view(dec->mem.y_attention, m, hidden);
    struct tensor from_ffn = view(dec->mem.y_ffn, m, hidden);
    bool has_attention = at->facts->mixer->mixing == ARCH_MIXING_ATTENTION;
    bool has_ffn = at->facts->ffn->body != ARCH_FFN_NONE;
    bool parallel = dec->shape->residual == ARCH_RESIDUAL_PARALLEL && has_attention && has_ffn;
    int rc = 0;
    if (has_attention)
        rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->attention_kinds);
    if (!rc && has_attention)
        rc = attention(dec, at, rows, &from_attention, parallel ? NULL : x);
    if (!rc && has_ffn)
        rc = at->experts ? decoder_run_experts(dec, at, ffn_norm(at, parallel), x, &from_ffn,
                                               parallel ? NULL : x)
                         : normed_ffn(dec, at, next, ffn_norm(at, parallel), x, &from_ffn,
                                      parallel ? NULL : x);
    if (!rc && parallel)
        rc = op_add(dec->stream, x, &from_attention);
    if (!rc && parallel)
        rc = op_add(dec->stream, x, &from_ffn);
    return rc;
}
