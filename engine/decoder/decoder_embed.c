/* Embeddings of tokens. Models with per-layer inputs have a second embedding with a part for each
 * layer. The layer's output grows by a product with that part. */
#include <math.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

static int scale_by(struct decoder *dec, struct tensor *x, double factor)
{
    const struct scale_params scale = {.factor = (float)factor};
    return scale.factor == 1 ? 0 : op_scale(dec->stream, x, NULL, &scale);
}

int decoder_embed_open(struct decoder *dec, struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    error_clear(err);
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        struct layer *at = &dec->layers[i];
        at->out_scale = 1;
        if (!at->vector[ARCH_LAYER_SCALE])
            continue;
        int rc = ops->download(dec->stream, &at->out_scale, at->vector[ARCH_LAYER_SCALE],
                               sizeof(at->out_scale));
        if (!rc)
            rc = ops->stream_sync(dec->stream, err);
        if (rc)
            return err->status ? rc : error_set(err, rc, "a layer's scale cannot be copied");
    }
    return 0;
}

/* inputs[m, layers * n] = (norm(W · x / sqrt(hidden)) + E[token] · sqrt(n)) / sqrt(2). */
static int fill_layer_inputs(struct decoder *dec, const struct tensor *x)
{
    const struct layer *globals = &dec->globals;
    uint32_t n = dec->shape->layer_embd_dim, n_all = n * dec->shape->n_layers, m = x->n_rows;
    struct tensor inputs = view(dec->mem.layer_inputs, m, n_all);
    struct tensor parts = view(dec->mem.layer_inputs, m * dec->shape->n_layers, n);
    struct tensor own = view(dec->mem.layer_embds, m, n_all);
    struct linear_part proj = {.y = &inputs, .w = globals->linear[ARCH_LAYER_EMBD_PROJ]};
    int rc = op_act_prepare(dec->stream, dec->act, x, weight_act_kind(proj.w), NULL, NULL);
    if (!rc)
        rc = op_linear_parts(dec->stream, dec->act, &proj, 1);
    if (!rc)
        rc = scale_by(dec, &inputs, 1 / sqrt(dec->shape->hidden_dim));
    if (!rc)
        rc = op_rms_norm(dec->stream, &parts, &parts, globals->vector[ARCH_LAYER_EMBD_NORM],
                         dec->shape->norm_eps);
    if (!rc)
        rc = op_embed(dec->stream, &own, dec->mem.token_ids + dec->row_begin,
                      globals->linear[ARCH_LAYER_EMBD]);
    if (!rc)
        rc = scale_by(dec, &own, sqrt(n));
    if (!rc)
        rc = op_add(dec->stream, &inputs, &own);
    return rc ? rc : scale_by(dec, &inputs, sqrt(0.5));
}

int decoder_embed_rows(struct decoder *dec, struct tensor *x)
{
    const struct layer *globals = &dec->globals;
    uint32_t begin = dec->row_begin;
    int rc = op_embed(dec->stream, x, dec->mem.token_ids + begin, globals->linear[ARCH_TOKEN_EMBD]);
    if (!rc)
        rc = scale_by(dec, x, (double)dec->shape->embed_scale);
    if (!rc && globals->linear[ARCH_POSITION_EMBD]) {
        struct tensor places = view(dec->mem.h, x->n_rows, x->n_cols);
        rc = op_embed(dec->stream, &places, dec->mem.positions + begin,
                      globals->linear[ARCH_POSITION_EMBD]);
        if (!rc)
            rc = op_add(dec->stream, x, &places);
    }
    if (!rc && globals->vector[ARCH_TOKEN_NORM])
        rc = decoder_norm(dec, globals, ARCH_TOKEN_NORM, x, x);
    return rc || !dec->shape->layer_embd_dim ? rc : fill_layer_inputs(dec, x);
}

/* x += norm(PROJ · (activation(GATE · x) · input)). Each rank computes the whole. */
static int add_layer_input(struct decoder *dec, const struct layer *at, struct tensor *x)
{
    uint32_t n = dec->shape->layer_embd_dim, m = x->n_rows;
    uint32_t i_layer = dec->split.layer_begin + (uint32_t)(at - dec->layers);
    struct tensor gate_y = view(dec->mem.layer_gate, m, n);
    struct tensor y = view(dec->mem.y_ffn, m, x->n_cols);
    struct tensor input = view(dec->mem.layer_inputs + (size_t)i_layer * n, m, n);
    const struct linear_part gate = {.y = &gate_y, .w = at->linear[ARCH_LAYER_GATE]};
    const struct linear_part proj = {.y = &y, .w = at->linear[ARCH_LAYER_PROJ]};
    input.row_stride = (size_t)n * dec->shape->n_layers;
    int rc = op_act_prepare(dec->stream, dec->act, x, weight_act_kind(gate.w), NULL, NULL);
    if (!rc)
        rc = op_linear_parts(dec->stream, dec->act, &gate, 1);
    if (!rc)
        rc = op_act_mul(dec->stream, &gate_y, &gate_y, &input,
                        shape_activation(dec->shape, at->facts));
    if (!rc)
        rc = op_act_prepare(dec->stream, dec->act, &gate_y, weight_act_kind(proj.w), NULL, NULL);
    if (!rc)
        rc = op_linear_parts(dec->stream, dec->act, &proj, 1);
    if (!rc)
        rc = decoder_norm(dec, at, ARCH_LAYER_POST_NORM, &y, &y);
    return rc ? rc : op_add(dec->stream, x, &y);
}

int decoder_embed_end(struct decoder *dec, const struct layer *at, struct tensor *x)
{
    int rc = at->linear[ARCH_LAYER_GATE] ? add_layer_input(dec, at, x) : 0;
    return rc ? rc : scale_by(dec, x, (double)at->out_scale);
}
