#include "base/status.h"
#include "engine/decoder/decoder_private.h"

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

int decoder_scale(struct decoder *dec, struct tensor *x, float factor)
{
    const struct scale_params scale = {.factor = factor};
    return factor == 1 ? 0 : op_scale(dec->stream, x, NULL, &scale);
}

/* --- mixers --- */

/* out[m, hidden] = attention over norm(x); added to `sum`. */
static int normed_attention(struct decoder *dec, const struct layer *at,
                            const struct attention_rows *rows, const struct tensor *x,
                            struct tensor *out, struct tensor *sum)
{
    const struct decoder_soon o = decoder_soon_out(at), ffn = decoder_soon_ffn(at);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct decoder_projections in;
    int rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->mixer_kinds);
    decoder_will_read(dec, &o);
    if (!rc)
        rc = decoder_project_rows(dec, at, x->n_rows, &in);
    return rc ? rc : decoder_attend(dec, at, rows, &in, &ffn, out, sum);
}

/* out[m, hidden] = recurrent mixer over norm(x); added to `sum`. */
static int normed_state(struct decoder *dec, const struct layer *at, const struct tensor *x,
                        struct tensor *out, struct tensor *sum)
{
    const struct decoder_soon o = decoder_soon_out(at), ffn = decoder_soon_ffn(at);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct decoder_recurrence in;
    int rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->mixer_kinds);
    decoder_will_read(dec, &o);
    if (!rc)
        rc = decoder_project_state(dec, at, x->n_rows, &in);
    return rc ? rc : decoder_run_state(dec, at, &in, &ffn, out, sum);
}

/* Both mixers read one norm. The projections come first, because attention prepares other rows. */
static int normed_both(struct decoder *dec, const struct layer *at,
                       const struct attention_rows *rows, const struct tensor *x,
                       struct tensor *out, struct tensor *sum)
{
    const struct decoder_soon o = decoder_soon_out(at), ffn = decoder_soon_ffn(at);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct tensor from_state = view(dec->mem.y_ffn, x->n_rows, x->n_cols);
    struct decoder_projections attention;
    struct decoder_recurrence state;
    int rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->mixer_kinds);
    decoder_will_read(dec, &o);
    if (!rc)
        rc = decoder_project_rows(dec, at, x->n_rows, &attention);
    if (!rc)
        rc = decoder_project_state(dec, at, x->n_rows, &state);
    if (!rc)
        rc = decoder_attend(dec, at, rows, &attention, &o, out, sum);
    return rc ? rc : decoder_run_state(dec, at, &state, &ffn, &from_state, sum ? sum : out);
}

int decoder_run_mixer(struct decoder *dec, const struct layer *at,
                      const struct attention_rows *rows, const struct tensor *x, struct tensor *out,
                      struct tensor *sum)
{
    switch (at->facts->mixer->mixing) {
    case ARCH_MIXING_ATTENTION:
        return normed_attention(dec, at, rows, x, out, sum);
    case ARCH_MIXING_LATENT:
        return decoder_run_latent(dec, at, rows, x, out, sum);
    case ARCH_MIXING_DELTA:
    case ARCH_MIXING_MAMBA2:
    case ARCH_MIXING_CONV:
        return normed_state(dec, at, x, out, sum);
    case ARCH_MIXING_ATTENTION_MAMBA2:
        return normed_both(dec, at, rows, x, out, sum);
    default: /* decoder_check_uses() refuses such a layer */
        return STATUS_UNIMPLEMENTED;
    }
}

/* --- FFN --- */

/* Prepares activation(gate · factor) · up · factor for the down matrix. */
static int scaled_ffn(struct decoder *dec, const struct layer *at, struct linear_part *gate,
                      struct linear_part *up, const struct linear_part *down)
{
    const struct model_scales *s = &dec->shape->scales;
    const struct linear_part parts[] = {*gate, *up};
    enum activation activation = shape_activation(dec->shape, at->facts);
    int rc = op_linear_parts(dec->stream, dec->act, parts, 2);
    if (!rc)
        rc = decoder_scale(dec, gate->y, s->ffn_gate);
    if (!rc)
        rc = op_act_mul(dec->stream, gate->y, gate->y, up->y, activation);
    if (!rc)
        rc = decoder_scale(dec, gate->y, s->ffn_out);
    return rc ? rc : decoder_row_prepare(dec, down, &at->split->ffn, gate->y);
}

/* out[m, hidden] = FFN over the prepared input; added to `sum`. `then`: the weights that are read
 * after those of the FFN. */
static int dense_ffn(struct decoder *dec, const struct layer *at, const struct decoder_soon *then,
                     enum arch_slot post_norm, struct tensor *out, struct tensor *sum)
{
    static const enum arch_slot down_slot[] = {ARCH_FFN_DOWN};
    const struct decoder_soon down_soon = {at, down_slot, 1};
    const struct segments *segments = &at->split->ffn;
    uint32_t m = out->n_rows, n = segments_len(segments);
    struct tensor up_y = view(dec->mem.up, m, n), gate_y = view(dec->mem.gate, m, n);
    struct linear_part up = decoder_part(at, ARCH_FFN_UP, &up_y);
    struct linear_part down = decoder_part(at, ARCH_FFN_DOWN, out);
    enum activation activation = shape_activation(dec->shape, at->facts);
    int rc = 0;
    decoder_will_read(dec, &down_soon);
    if (at->facts->ffn->form == ARCH_FFN_GATED) {
        struct linear_part gate = decoder_part(at, ARCH_FFN_GATE, &gate_y);
        bool scaled = dec->shape->scales.ffn_gate != 1 || dec->shape->scales.ffn_out != 1;
        rc = scaled ? scaled_ffn(dec, at, &gate, &up, &down)
                    : op_gated_prepare(dec->stream, dec->act, &gate, &up, activation,
                                       weight_act_kind(down.w), segments, dec->comm);
    } else {
        rc = op_linear_parts(dec->stream, dec->act, &up, 1);
        if (!rc)
            rc = op_act_mul(dec->stream, &gate_y, &up_y, NULL, activation);
        if (!rc)
            rc = decoder_row_prepare(dec, &down, segments, &gate_y);
    }
    decoder_will_read(dec, then);
    return rc ? rc : decoder_end_branch(dec, at, down, post_norm, sum);
}

/* sum += norm(dense + experts): both read x by a norm of their own, and have norms of their
 * outputs. The layer has a sequential residual, so the mixer's output is scratch. */
static int both_ffns(struct decoder *dec, const struct layer *at, const struct layer *next,
                     const struct tensor *x, struct tensor *out, struct tensor *sum)
{
    static const enum arch_slot router[] = {ARCH_ROUTER};
    const struct decoder_soon then = {at, router, 1};
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct tensor from_experts = view(dec->mem.y_attention, x->n_rows, x->n_cols);
    int rc = decoder_norm_prepare(dec, at, ARCH_FFN_NORM, &h, x, at->ffn_kinds);
    if (!rc)
        rc = dense_ffn(dec, at, &then, ARCH_DENSE_POST_NORM, out, NULL);
    if (!rc)
        rc = decoder_run_experts(dec, at, next, ARCH_EXPERT_NORM, ARCH_EXPERT_POST_NORM, x,
                                 &from_experts, NULL);
    if (!rc)
        rc = op_add(dec->stream, out, &from_experts);
    return rc ? rc : decoder_add_branch(dec, at, out, ARCH_FFN_POST_NORM, sum);
}

/* out[m, hidden] = FFN over norm(x); added to `sum`. */
static int normed_ffn(struct decoder *dec, const struct layer *at, const struct layer *next,
                      enum arch_slot norm, const struct tensor *x, struct tensor *out,
                      struct tensor *sum)
{
    const struct decoder_soon then = decoder_soon_next(dec, next);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    if (at->facts->ffn->body == ARCH_FFN_BOTH)
        return both_ffns(dec, at, next, x, out, sum);
    if (at->experts)
        return decoder_run_experts(dec, at, next, norm, ARCH_FFN_POST_NORM, x, out, sum);
    int rc = decoder_norm_prepare(dec, at, norm, &h, x, at->ffn_kinds);
    return rc ? rc : dense_ffn(dec, at, &then, ARCH_FFN_POST_NORM, out, sum);
}

/* --- a layer --- */

/* x += attention(h) + ffn(h), where h = norm(x) is normed and prepared once. So the FFN runs before
 * attention prepares other rows. */
static int run_joined(struct decoder *dec, const struct layer *at, const struct layer *next,
                      const struct attention_rows *rows, struct tensor *x)
{
    const struct decoder_soon ffn = decoder_soon_ffn(at), o = decoder_soon_out(at),
                              then = decoder_soon_next(dec, next);
    struct tensor h = view(dec->mem.h, x->n_rows, x->n_cols);
    struct tensor from_attention = view(dec->mem.y_attention, x->n_rows, x->n_cols);
    struct tensor from_ffn = view(dec->mem.y_ffn, x->n_rows, x->n_cols);
    struct decoder_projections in;
    int rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->mixer_kinds | at->ffn_kinds);
    decoder_will_read(dec, &ffn);
    if (!rc)
        rc = decoder_project_rows(dec, at, x->n_rows, &in);
    if (!rc)
        rc = dense_ffn(dec, at, &o, ARCH_FFN_POST_NORM, &from_ffn, NULL);
    if (!rc)
        rc = decoder_attend(dec, at, rows, &in, &then, &from_attention, x);
    return rc ? rc : op_add(dec->stream, x, &from_ffn);
}

/* x += attention(norm(x)) + ffn(norm(x)). Without an FFN norm, the FFN has attention's. */
static int run_parallel(struct decoder *dec, const struct layer *at, const struct layer *next,
                        const struct attention_rows *rows, struct tensor *x)
{
    bool has_ffn_norm = at->vector[ARCH_FFN_NORM] != NULL;
    struct tensor from_attention = view(dec->mem.y_attention, x->n_rows, x->n_cols);
    struct tensor from_ffn = view(dec->mem.y_ffn, x->n_rows, x->n_cols);
    if (!has_ffn_norm && !at->experts && at->facts->mixer->mixing == ARCH_MIXING_ATTENTION)
        return run_joined(dec, at, next, rows, x);
    int rc = decoder_run_mixer(dec, at, rows, x, &from_attention, NULL);
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
    bool has_mixer = at->facts->mixer->mixing != ARCH_MIXING_NONE;
    bool has_ffn = at->facts->ffn->body != ARCH_FFN_NONE;
    if (dec->shape->residual == ARCH_RESIDUAL_PARALLEL && has_mixer && has_ffn)
        return run_parallel(dec, at, next, rows, x);
    int rc = has_mixer ? decoder_run_mixer(dec, at, rows, x, &y, x) : 0;
    y.data = dec->mem.y_ffn;
    return rc || !has_ffn ? rc : normed_ffn(dec, at, next, ARCH_FFN_NORM, x, &y, x);
}
