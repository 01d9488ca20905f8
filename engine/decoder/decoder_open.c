#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"

static int bind_place(struct decoder *dec, const struct weight_place *place, struct error *err)
{
    uint32_t i_place = (uint32_t)(place - dec->cfg.plan->places);
    const struct weight *weight = dec->cfg.device_weights ? dec->cfg.device_weights[i_place]
                                                          : loader_weight(dec->cfg.weights, place);
    struct layer *layer =
        place->slot < ARCH_FIRST_LAYER_SLOT ? &dec->globals : &dec->layers[place->layer];
    if (place->layer >= dec->split.n_layers)
        return error_set(err, STATUS_INTERNAL, "decoder: layer %u of %u", place->layer,
                         dec->split.n_layers);
    if (model_has_experts(place->slot))
        layer->experts->by_expert[(place->slot - ARCH_EXPERT_GATE) / 2 * dec->shape->experts.n +
                                  place->expert] = weight;
    else if (arch_slot_facts(place->slot)->by_head)
        decoder_latent_bind(layer, place->slot, place->expert, weight);
    else if (place->desc.role == WEIGHT_VECTOR)
        layer->vector[place->slot] = weight_vector(weight);
    else
        layer->linear[place->slot] = weight;
    return 0;
}

/* The formats of activations that a layer's linears read, of n slots. */
static uint32_t kinds_of(const struct layer *at, const enum arch_slot *slots, uint32_t n)
{
    uint32_t kinds = 0;
    for (uint32_t i = 0; i < n; i++)
        if (at->linear[slots[i]])
            kinds |= weight_act_kind(at->linear[slots[i]]);
    return kinds;
}

static void set_kinds(struct layer *at)
{
    static const enum arch_slot mixer[] = {
        ARCH_ATTN_Q,        ARCH_ATTN_K,         ARCH_ATTN_V,       ARCH_ATTN_GATE,
        ARCH_STATE_Q,       ARCH_STATE_K,        ARCH_STATE_V,      ARCH_STATE_GATE,
        ARCH_STATE_DT,      ARCH_STATE_BETA,     ARCH_CONV_GATE_IN, ARCH_CONV_GATE_OUT,
        ARCH_LATENT_Q_DOWN, ARCH_LATENT_KV_DOWN, ARCH_LATENT_K_ROPE};
    static const enum arch_slot full_rank[] = {ARCH_LATENT_Q_NOPE, ARCH_LATENT_Q_ROPE};
    static const enum arch_slot ffn[] = {ARCH_FFN_UP, ARCH_FFN_GATE};
    at->mixer_kinds = kinds_of(at, mixer, ARCH_N_OF(mixer));
    if (!at->linear[ARCH_LATENT_Q_DOWN])
        at->mixer_kinds |= kinds_of(at, full_rank, ARCH_N_OF(full_rank));
    at->ffn_kinds = kinds_of(at, ffn, ARCH_N_OF(ffn));
}

static int bind_weights(struct decoder *dec, struct error *err)
{
    const struct rank_plan *plan = dec->cfg.plan;
    dec->layers = calloc(dec->split.n_layers, sizeof(*dec->layers));
    if (!dec->layers)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u layers",
                         dec->split.n_layers);
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        dec->layers[i].facts = &dec->shape->layers[dec->split.layer_begin + i];
        dec->layers[i].split = &dec->split.layers[i];
    }
    int rc = decoder_experts_open(dec, err);
    if (!rc)
        rc = decoder_latent_open(dec, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < plan->n_places; i++) {
        rc = bind_place(dec, &plan->places[i], err);
        if (rc)
            return rc;
    }
    if (dec->cfg.model->tied_output && rank_is_last(&plan->rank) &&
        !dec->globals.linear[ARCH_OUTPUT])
        dec->globals.linear[ARCH_OUTPUT] = dec->globals.linear[ARCH_TOKEN_EMBD];
    rc = decoder_check_uses(dec, err);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++)
        set_kinds(&dec->layers[i]);
    return rc;
}

static int make_memory(struct decoder *dec, struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    const struct rank_plan *plan = dec->cfg.plan;
    void *data;
    decoder_memory_layout(plan, dec->shape, NULL, &dec->mem);
    dec->memory_bytes = dec->mem.n_bytes;
    int rc = ops->alloc(dec->stream->device, dec->memory_bytes, &data, err);
    if (rc)
        return error_prefix(err, "workspace");
    dec->memory = data;
    decoder_memory_layout(plan, dec->shape, dec->memory, &dec->mem);
    dec->kv_bytes = decoder_kv_bytes(plan, dec->shape);
    if (dec->kv_bytes) { /* 0: no layer has attention */
        rc = ops->alloc(dec->stream->device, dec->kv_bytes, &data, err);
        if (rc)
            return error_prefix(err, "KV cache");
        dec->kv_memory = data;
    }
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        decoder_memory_kv(plan, dec->shape, dec->kv_memory, i, &dec->layers[i].kv);
        dec->layers[i].is_windowed = decoder_memory_is_windowed(plan, dec->shape, i);
    }
    rc = decoder_state_open(dec, err);
    if (rc)
        return rc;
    uint32_t max_k = decoder_memory_max_k(plan, dec->shape);
    return dec->stream->ops->act_create(dec->stream->device, plan->steps.max_rows, max_k, &dec->act,
                                        err);
}

/* Copies f32 numbers to the device. Returns once they are there. */
static int upload_floats(struct decoder *dec, float *to, const float *from, uint32_t n,
                         const char *what, struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    error_clear(err); /* a failure of the device fills it */
    int rc = ops->upload(dec->stream, to, from, n * sizeof(float));
    if (!rc)
        return ops->stream_sync(dec->stream, err);
    return err->status ? rc : error_set(err, rc, "%s cannot be copied", what);
}

/* Reads the divisors of rope set 0 from the device. */
static int read_divisors(struct decoder *dec, const float *from, float *divisors, uint32_t n,
                         struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    error_clear(err);
    int rc = ops->download(dec->stream, divisors, from, n * sizeof(float));
    if (!rc)
        return ops->stream_sync(dec->stream, err);
    return err->status ? rc : error_set(err, rc, "rope frequencies cannot be copied");
}

/* The divisors of a table of the set; *out is NULL if it has none. Tensors belong to set 0 alone.
 * `room`: memory for them, [n_rot / 2]. */
static int find_divisors(struct decoder *dec, uint32_t i_set, uint32_t table, float *room,
                         const float **out, struct error *err)
{
    static const enum arch_slot slots[ROPE_MAX_TABLES] = {
        [ROPE_TABLE_SHORT] = ARCH_ROPE_FREQS_SHORT,
        [ROPE_TABLE_LONG] = ARCH_ROPE_FREQS_LONG,
    };
    const struct rope_set *set = &dec->shape->ropes[i_set];
    bool long_rope = set->scaling == ROPE_SCALING_LONGROPE;
    const float *from = dec->globals.vector[long_rope ? slots[table] : ARCH_ROPE_FREQS];
    *out = set->n_divisors ? set->divisors[table] : NULL;
    if (set->n_divisors || i_set || !from)
        return 0;
    *out = room;
    return read_divisors(dec, from, room, set->n_rot / 2, err);
}

/* `host` has room for all tables and a table's divisors. */
static int make_rope(struct decoder *dec, uint32_t i_set, float *host, struct error *err)
{
    const struct rope_set *set = &dec->shape->ropes[i_set];
    uint32_t n = set->n_rot / 2, n_tables = decoder_rope_tables(set);
    float factor = 1;
    for (uint32_t t = 0; t < n_tables; t++) {
        const float *divisors;
        int rc = find_divisors(dec, i_set, t, host + (size_t)n_tables * n, &divisors, err);
        if (rc)
            return rc;
        factor = shape_rope_freqs(set, divisors, host + (size_t)t * n);
    }
    dec->ropes[i_set] = (struct rope_params){
        .style = dec->cfg.model->source.rope_style,
        .n_rot = set->n_rot,
        .inv_freq = dec->mem.inv_freq[i_set],
        .attention_factor = factor,
        .row_tables = n_tables > 1 ? dec->mem.rope_tables : NULL,
    };
    return upload_floats(dec, dec->mem.inv_freq[i_set], host, n_tables * n, "rope frequencies",
                         err);
}

static int make_ropes(struct decoder *dec, struct error *err)
{
    int rc = 0;
    float *host = malloc((ROPE_MAX_TABLES + 1) * MODEL_MAX_HEAD_DIM / 2 * sizeof(float));
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for rope frequencies");
    for (uint32_t i = 0; !rc && i < ARCH_MAX_ROPES; i++)
        if (dec->shape->ropes[i].n_rot)
            rc = make_rope(dec, i, host, err);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++) {
        struct layer *at = &dec->layers[i];
        uint32_t set = at->facts->mixer->rope;
        if (at->facts->n_heads && set != ARCH_NO_ROPE)
            dec->ropes[set].head_dim = shape_rope_dim(dec->shape, at->facts);
        at->rope = set == ARCH_NO_ROPE ? &dec->no_rope : &dec->ropes[set];
    }
    free(host);
    return rc;
}

/* Uploads the ALiBi slopes of the rank's heads. All layers have the same heads (shape.c). */
static int make_alibi(struct decoder *dec, struct error *err)
{
    const struct model_layer *facts = dec->layers[0].facts;
    const struct layer_split *split = dec->layers[0].split;
    if (!(dec->shape->alibi_bias > 0) || !facts->n_heads)
        return 0;
    float *host = malloc(facts->n_heads * sizeof(float));
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for slopes");
    shape_alibi_slopes(dec->shape->alibi_bias, facts->n_heads, host);
    for (uint32_t i = 0; i < facts->n_heads; i++)
        host[i] = (float)((double)host[i] * dec->shape->alibi_scale);
    int rc = upload_floats(dec, dec->mem.slopes, host + split->head_begin, split->n_heads, "slopes",
                           err);
    free(host);
    return rc;
}

static int make_ones(struct decoder *dec, struct error *err)
{
    uint32_t n = dec->split.most.head_dim;
    float *host = dec->mem.has_ones ? malloc(n * sizeof(float)) : NULL;
    if (!dec->mem.has_ones)
        return 0;
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a vector of ones");
    for (uint32_t i = 0; i < n; i++)
        host[i] = 1;
    int rc = upload_floats(dec, dec->mem.ones, host, n, "ones", err);
    free(host);
    return rc;
}

/* Uploads the factors that queries have by position: 1 + β·ln(1 + ⌊position / length⌋). */
static int make_temperature(struct decoder *dec, struct error *err)
{
    uint32_t n = dec->mem.n_temperature;
    float *host = n ? malloc(n * sizeof(float)) : NULL;
    if (!n)
        return 0;
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for factors of queries");
    for (uint32_t i = 0; i < n; i++)
        host[i] = (float)(1 + dec->shape->temperature * log(1.0 + i));
    int rc = upload_floats(dec, dec->mem.temperature, host, n, "factors of queries", err);
    free(host);
    dec->temperature = (struct scale_params){.factor = 1,
                                             .by_position = dec->mem.temperature,
                                             .period = (uint32_t)dec->shape->temperature_length,
                                             .offset = dec->shape->temperature_offset};
    return rc;
}

static void init_attention(struct decoder *dec)
{
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        struct layer *at = &dec->layers[i];
        if (!at->facts->n_heads)
            continue;
        at->attention = (struct attention_params){
            .n_heads = at->split->n_heads,
            .head_begin = at->split->head_begin,
            .kv_begin = at->split->kv_begin,
            .heads_per_kv = at->facts->n_heads / at->facts->n_kv_heads,
            .scale = shape_attn_scale(dec->shape, at->facts),
            .window = at->facts->window,
            .chunk = at->facts->chunk,
            .softcap = dec->shape->attn_softcap,
            .slopes = dec->shape->alibi_bias > 0 ? dec->mem.slopes : NULL,
            .sinks = at->vector[ARCH_ATTN_SINKS],
        };
    }
}

int decoder_create(const struct decoder_config *cfg, struct decoder **out_decoder,
                   struct error *err)
{
    struct decoder *dec = calloc(1, sizeof(*dec));
    if (!dec)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a decoder");
    dec->cfg = *cfg;
    dec->arch = cfg->model->arch;
    dec->shape = &cfg->model->shape;
    dec->split = cfg->plan->split;
    dec->stream = cfg->stream;
    dec->comm = cfg->plan->rank.comm;
    int rc = bind_weights(dec, err);
    if (!rc)
        rc = make_memory(dec, err);
    if (!rc)
        rc = make_ropes(dec, err);
    if (!rc)
        rc = make_alibi(dec, err);
    if (!rc)
        rc = make_ones(dec, err);
    if (!rc)
        rc = make_temperature(dec, err);
    if (!rc)
        rc = decoder_experts_start(dec, err);
    if (!rc)
        rc = decoder_embed_open(dec, err);
    init_attention(dec);
    if (!rc)
        rc = decoder_inputs_init(dec, err);
    if (!rc)
        rc = decoder_graphs_create(dec, err);
    if (rc) {
        decoder_destroy(dec);
        return rc;
    }
    *out_decoder = dec;
    return 0;
}

void decoder_destroy(struct decoder *dec)
{
    if (!dec)
        return;
    const struct device_ops *ops = dec->stream->device->ops;
    decoder_graphs_destroy(dec);
    decoder_inputs_fini(dec);
    if (dec->act)
        dec->stream->ops->act_destroy(dec->act);
    if (dec->kv_memory)
        ops->free(dec->stream->device, dec->kv_memory, dec->kv_bytes);
    decoder_state_close(dec);
    if (dec->memory)
        ops->free(dec->stream->device, dec->memory, dec->memory_bytes);
    decoder_experts_close(dec);
    decoder_latent_close(dec);
    free(dec->layers);
    free(dec);
}

void decoder_get_taken(const struct decoder *dec, struct decoder_taken *out_taken)
{
    const struct rank_plan *plan = dec->cfg.plan;
    uint32_t max_k = decoder_memory_max_k(plan, dec->shape);
    out_taken->kv_bytes = dec->kv_bytes;
    out_taken->state_bytes = dec->state_bytes;
    out_taken->workspace_bytes = dec->memory_bytes +
                                 dec->stream->ops->act_bytes(plan->steps.max_rows, max_k) +
                                 decoder_memory_expert_act(plan, dec->shape, dec->stream->ops);
}
