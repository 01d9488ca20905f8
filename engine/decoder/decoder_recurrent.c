/* Mixers with a state. The gated delta net and Mamba-2 project their input to Q, K and V; Mamba-2
 * calls these C, B and x. They convolve these along the sequence, and update the state row by row.
 * The convolved columns lie in one row, in the order that the op reads. A short convolution has V
 * alone, and two gates. */
#include <math.h>

#include "engine/decoder/decoder_private.h"

/* Transformers adds this to the sum of squares of a query or key, whatever the norms' epsilon is.
 */
#define L2_EPS 1e-6f

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

/* The columns [begin, begin + n) of all rows. */
static struct tensor columns(const struct tensor *t, uint32_t begin, uint32_t n)
{
    struct tensor part = *t;
    part.data = (float *)t->data + begin;
    part.n_cols = n;
    return part;
}

static struct state_rows rows_of(const struct decoder *dec, uint32_t n_rows)
{
    return (struct state_rows){dec->mem.state_reads + dec->row_begin,
                               dec->mem.state_writes + dec->row_begin, n_rows};
}

/* The input and both gates of a short convolution. `beta` has the gate of its input. */
static int project_conv(struct decoder *dec, const struct layer *at, uint32_t m,
                        struct decoder_recurrence *out)
{
    uint32_t n = at->split->state.n_values;
    out->v = view(dec->mem.state_inputs, m, n);
    out->gate = view(dec->mem.state_gate, m, n);
    out->beta = view(dec->mem.state_values, m, n);
    const struct linear_part parts[] = {decoder_part(at, ARCH_STATE_V, &out->v),
                                        decoder_part(at, ARCH_CONV_GATE_IN, &out->beta),
                                        decoder_part(at, ARCH_CONV_GATE_OUT, &out->gate)};
    return op_linear_parts(dec->stream, dec->act, parts, 3);
}

static int scale_parts(struct decoder *dec, struct decoder_recurrence *in)
{
    const struct model_scales *s = &dec->shape->scales;
    int rc = decoder_scale(dec, &in->gate, s->gate);
    if (!rc)
        rc = decoder_scale(dec, &in->v, s->values);
    if (!rc)
        rc = decoder_scale(dec, &in->k, s->keys);
    if (!rc)
        rc = decoder_scale(dec, &in->q, s->queries);
    return rc ? rc : decoder_scale(dec, &in->dt, s->dt);
}

int decoder_project_state(struct decoder *dec, const struct layer *at, uint32_t m,
                          struct decoder_recurrence *out)
{
    if (at->facts->mixer->mixing == ARCH_MIXING_CONV)
        return project_conv(dec, at, m, out);
    const struct state_split *split = &at->split->state;
    bool is_delta = at->facts->mixer->mixing == ARCH_MIXING_DELTA;
    uint32_t n_keys = split->n_keys * dec->shape->state.key_dim, n_values = split->n_values;
    out->inputs = view(dec->mem.state_inputs, m, 2 * n_keys + n_values);
    out->q = columns(&out->inputs, is_delta ? 0 : n_values + n_keys, n_keys);
    out->k = columns(&out->inputs, is_delta ? n_keys : n_values, n_keys);
    out->v = columns(&out->inputs, is_delta ? 2 * n_keys : 0, n_values);
    out->gate = view(dec->mem.state_gate, m, n_values);
    out->dt = view(dec->mem.state_dt, m, split->n_heads);
    out->beta = view(dec->mem.state_beta, m, split->n_heads);
    const struct linear_part inputs[] = {decoder_part(at, ARCH_STATE_Q, &out->q),
                                         decoder_part(at, ARCH_STATE_K, &out->k),
                                         decoder_part(at, ARCH_STATE_V, &out->v)};
    const struct linear_part others[] = {decoder_part(at, ARCH_STATE_GATE, &out->gate),
                                         decoder_part(at, ARCH_STATE_DT, &out->dt),
                                         decoder_part(at, ARCH_STATE_BETA, &out->beta)};
    int rc = op_linear_parts(dec->stream, dec->act, inputs, 3);
    if (!rc)
        rc = op_linear_parts(dec->stream, dec->act, others, is_delta ? 3 : 2);
    return rc ? rc : scale_parts(dec, out);
}

/* Convolves a part of the inputs in place. The bias lies three slots behind the taps. */
static int convolve(struct decoder *dec, const struct layer *at, enum arch_slot taps,
                    const struct state_view *state, struct tensor *x)
{
    const struct state_rows rows = rows_of(dec, x->n_rows);
    const struct conv_params p = {
        .n_cols = x->n_cols,
        .width = dec->shape->state.width,
        .w = at->vector[taps],
        .bias = at->vector[taps - ARCH_STATE_CONV_Q + ARCH_STATE_CONV_Q_BIAS],
        .silu = true,
    };
    return op_conv(dec->stream, x, x, state, &rows, &p);
}

static int run_delta(struct decoder *dec, const struct layer *at, struct decoder_recurrence *in,
                     struct tensor *y)
{
    const struct model_state *s = &dec->shape->state;
    const struct state_split *split = &at->split->state;
    const struct state_rows rows = rows_of(dec, y->n_rows);
    const struct delta_params p = {
        .n_key_heads = split->n_keys,
        .n_heads = split->n_heads,
        .key_dim = s->key_dim,
        .head_dim = s->head_dim,
        .first_head = split->head_begin,
        .n_all_key_heads = s->n_key_heads,
        .n_all_heads = s->n_heads,
        .first_key = split->key_begin,
        .tiled = s->tiled,
        .a = at->vector[ARCH_STATE_A],
        .dt_bias = at->vector[ARCH_STATE_DT_BIAS],
        .norm_eps = L2_EPS,
        .scale = (float)(1 / sqrt(s->key_dim)),
    };
    int rc = op_delta_net(dec->stream, y, &in->inputs, &in->beta, &in->dt,
                          &at->states[DECODER_STATE_HEADS], &rows, &p);
    struct tensor heads = view(y->data, y->n_rows * split->n_heads, s->head_dim);
    if (!rc)
        rc = op_rms_norm(dec->stream, &heads, &heads, at->vector[ARCH_STATE_NORM],
                         dec->shape->norm_eps);
    return rc ? rc : op_act_mul(dec->stream, &in->gate, &in->gate, y, ACTIVATION_SILU);
}

/* Norms each group by itself, with its own weights. Does nothing without weights. */
static int norm_groups(struct decoder *dec, const struct layer *at, const struct tensor *x)
{
    const struct state_split *split = &at->split->state;
    const float *w = at->vector[ARCH_STATE_NORM];
    const struct norm_params p = {.w = w ? w + split->value_begin : NULL,
                                  .eps = dec->shape->norm_eps};
    return w ? op_norm_heads(dec->stream, x, split->n_keys, &p) : 0;
}

static int run_mamba(struct decoder *dec, const struct layer *at, struct decoder_recurrence *in,
                     struct tensor *y)
{
    const struct model_state *s = &dec->shape->state;
    const struct state_split *split = &at->split->state;
    const struct state_rows rows = rows_of(dec, y->n_rows);
    const struct ssm_params p = {
        .n_groups = split->n_keys,
        .n_heads = split->n_heads,
        .state_dim = s->key_dim,
        .head_dim = s->head_dim,
        .a = at->vector[ARCH_STATE_A],
        .d = at->vector[ARCH_STATE_D],
        .dt_bias = at->vector[ARCH_STATE_DT_BIAS],
    };
    bool norm_first = s->norm_first;
    int rc =
        op_ssm(dec->stream, y, &in->inputs, &in->dt, &at->states[DECODER_STATE_HEADS], &rows, &p);
    if (!rc && norm_first)
        rc = norm_groups(dec, at, y);
    if (!rc)
        rc = op_act_mul(dec->stream, &in->gate, &in->gate, y, ACTIVATION_SILU);
    return rc || norm_first ? rc : norm_groups(dec, at, &in->gate);
}

/* in->gate = out · conv(in · x). */
static int run_conv(struct decoder *dec, const struct layer *at, struct decoder_recurrence *in)
{
    const struct state_rows rows = rows_of(dec, in->v.n_rows);
    const struct conv_params p = {
        .n_cols = in->v.n_cols,
        .width = dec->shape->state.width,
        .w = at->vector[ARCH_STATE_CONV_V],
        .bias = at->vector[ARCH_STATE_CONV_V_BIAS],
    };
    int rc = op_act_mul(dec->stream, &in->v, &in->v, &in->beta, ACTIVATION_IDENTITY);
    if (!rc)
        rc = op_conv(dec->stream, &in->v, &in->v, &at->states[DECODER_STATE_V], &rows, &p);
    return rc ? rc : op_act_mul(dec->stream, &in->gate, &in->gate, &in->v, ACTIVATION_IDENTITY);
}

static int run_heads(struct decoder *dec, const struct layer *at, struct decoder_recurrence *in,
                     struct tensor *y)
{
    int rc = convolve(dec, at, ARCH_STATE_CONV_Q, &at->states[DECODER_STATE_Q], &in->q);
    if (!rc)
        rc = convolve(dec, at, ARCH_STATE_CONV_K, &at->states[DECODER_STATE_K], &in->k);
    if (!rc)
        rc = convolve(dec, at, ARCH_STATE_CONV_V, &at->states[DECODER_STATE_V], &in->v);
    if (rc)
        return rc;
    return at->facts->mixer->mixing == ARCH_MIXING_DELTA ? run_delta(dec, at, in, y)
                                                         : run_mamba(dec, at, in, y);
}

int decoder_run_state(struct decoder *dec, const struct layer *at, struct decoder_recurrence *in,
                      const struct decoder_soon *then, struct tensor *out, struct tensor *sum)
{
    const struct state_split *split = &at->split->state;
    struct tensor y = view(dec->mem.state_values, out->n_rows, split->n_values);
    struct linear_part o = decoder_part(at, ARCH_STATE_OUT, out);
    int rc = at->facts->mixer->mixing == ARCH_MIXING_CONV ? run_conv(dec, at, in)
                                                          : run_heads(dec, at, in, &y);
    if (!rc)
        rc = decoder_scale(dec, &in->gate, dec->shape->scales.state_out);
    decoder_will_read(dec, then);
    struct tensor own = columns(&in->gate, segments_begin(&split->out) - split->value_begin,
                                segments_len(&split->out));
    if (!rc)
        rc = decoder_row_prepare(dec, &o, &split->out, &own);
    return rc ? rc : decoder_end_branch(dec, at, o, ARCH_ATTN_POST_NORM, sum);
}
