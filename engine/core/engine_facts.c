#include "engine/engine_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/default_sampling.h"
#include "engine/model/model.h"

/* MOST_IGNORED rules are listed; a file may have thousands of keys. */
enum { MOST_IGNORED = 512, ARENA_BYTES = 64 * 1024, MAX_NAME = 128 };

/* Marks of a tensor. */
enum { IS_LOADED = 1, IS_OF_EXPERTS = 2 };

static const char not_needed[] = "not needed to compute text";
static const char describes[] = "describes the files or the training, or other parts read it";

struct survey {
    const struct checkpoint *ckpt;
    const struct model *model;
    struct engine_facts *facts;
    uint8_t *marks; /* [tensors of the file]; owned */
    struct engine_ignored *ignored;
    struct error *err;
};

static int out_of_memory(const struct survey *s)
{
    return error_set(s->err, STATUS_RESOURCE_EXHAUSTED, "model facts: out of memory");
}

/* --- words --- */

static const char *const activations[N_ACTIVATIONS] = {
    [ACTIVATION_SILU] = "silu",          [ACTIVATION_GELU_TANH] = "gelu (tanh)",
    [ACTIVATION_GELU_ERF] = "gelu",      [ACTIVATION_RELU] = "relu",
    [ACTIVATION_RELU2] = "relu squared", [ACTIVATION_GATED_OAI] = "clamped swish",
};

static const char *scaling_word(enum rope_scaling scaling)
{
    switch (scaling) {
    case ROPE_SCALING_NONE:
        return "none";
    case ROPE_SCALING_LINEAR:
        return "linear";
    case ROPE_SCALING_LLAMA3:
        return "llama3";
    case ROPE_SCALING_YARN:
        return "yarn";
    case ROPE_SCALING_LONGROPE:
        return "longrope";
    case ROPE_SCALING_DYNAMIC:
        return "dynamic";
    case ROPE_SCALING_PROPORTIONAL:
        return "proportional";
    }
    return "";
}

static const char *score_word(enum router_score score)
{
    switch (score) {
    case ROUTER_SOFTMAX:
        return "softmax";
    case ROUTER_SIGMOID:
        return "sigmoid";
    case ROUTER_TOPK_SOFTMAX:
        return "softmax of the chosen";
    case ROUTER_SQRT_SOFTPLUS:
        return "sqrt softplus";
    }
    return "";
}

static const char *ffn_word(enum arch_ffn_body body)
{
    switch (body) {
    case ARCH_FFN_DENSE:
        return "dense";
    case ARCH_FFN_EXPERTS:
        return "experts";
    case ARCH_FFN_NONE:
        return "none";
    case ARCH_FFN_BOTH:
        return "dense and experts";
    }
    return "";
}

static const char *mixer_word(enum arch_mixing mixing)
{
    switch (mixing) {
    case ARCH_MIXING_ATTENTION:
        return "attention";
    case ARCH_MIXING_DELTA:
        return "gated delta net";
    case ARCH_MIXING_MAMBA2:
        return "mamba-2";
    case ARCH_MIXING_CONV:
        return "short convolution";
    case ARCH_MIXING_LATENT:
        return "latent attention";
    case ARCH_MIXING_ATTENTION_MAMBA2:
        return "attention and mamba-2";
    default:
        return "none";
    }
}

/* --- layers --- */

static void describe_layer(const struct model_shape *shape, uint32_t i_layer,
                           struct engine_layer_kind *out)
{
    const struct model_layer *layer = &shape->layers[i_layer];
    const struct model_state *state = &shape->state;
    bool attends = arch_has_attention(layer->mixer->mixing);
    bool has_ffn = layer->ffn->body != ARCH_FFN_NONE;
    uint32_t rope = layer->mixer->rope;
    *out = (struct engine_layer_kind){
        .mixer = mixer_word(layer->mixer->mixing),
        .reach = !attends        ? ""
                 : layer->window ? "window"
                 : layer->chunk  ? "chunk"
                                 : "full",
        .reach_tokens = layer->window ? layer->window : layer->chunk,
        .rope = attends && rope != ARCH_NO_ROPE && shape->ropes[rope].n_rot ? (int32_t)rope : -1,
        .n_heads = layer->n_heads,
        .n_kv_heads = layer->n_kv_heads,
        .k_dim = layer->k_dim,
        .v_dim = layer->v_dim,
        .state_bytes = shape_state_floats(shape, i_layer) * sizeof(float),
        .ffn = ffn_word(layer->ffn->body),
        .ffn_form = !has_ffn                             ? ""
                    : layer->ffn->form == ARCH_FFN_GATED ? "gated"
                                                         : "plain",
        .activation = has_ffn ? activations[shape_activation(shape, layer)] : "",
        .ffn_dim = layer->ffn_dim,
    };
    if (!arch_has_state(layer->mixer->mixing))
        return;
    out->conv_width = state->width;
    if (layer->mixer->mixing == ARCH_MIXING_CONV)
        return;
    out->n_state_heads = state->n_heads;
    out->n_state_keys = state->n_key_heads;
    out->state_key_dim = state->key_dim;
    out->state_dim = state->head_dim;
}

static bool same_kind(const struct engine_layer_kind *a, const struct engine_layer_kind *b)
{
    const char *const words[][2] = {{a->mixer, b->mixer},
                                    {a->reach, b->reach},
                                    {a->ffn, b->ffn},
                                    {a->ffn_form, b->ffn_form},
                                    {a->activation, b->activation}};
    for (uint32_t i = 0; i < ARCH_N_OF(words); i++)
        if (strcmp(words[i][0], words[i][1]) != 0)
            return false;
    return a->reach_tokens == b->reach_tokens && a->rope == b->rope && a->n_heads == b->n_heads &&
           a->n_kv_heads == b->n_kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
           a->ffn_dim == b->ffn_dim && a->state_bytes == b->state_bytes;
}

/* Each layer goes to the first kind of its shape; `members` has room for every layer. */
static int add_layers(struct survey *s)
{
    const struct model_shape *shape = &s->model->shape;
    uint32_t n = shape->n_layers;
    struct engine_layer_kind *kinds = arena_calloc(&s->facts->arena, n, sizeof(*kinds));
    uint32_t *members = arena_calloc(&s->facts->arena, n, sizeof(*members));
    uint32_t *kind_of = arena_calloc(&s->facts->arena, n, sizeof(*kind_of)), n_kinds = 0, at = 0;
    if (!kinds || !members || !kind_of)
        return out_of_memory(s);
    for (uint32_t i = 0; i < n; i++) {
        struct engine_layer_kind kind;
        uint32_t k = 0;
        describe_layer(shape, i, &kind);
        while (k < n_kinds && !same_kind(&kinds[k], &kind))
            k++;
        if (k == n_kinds)
            kinds[n_kinds++] = kind;
        kind_of[i] = k;
    }
    for (uint32_t k = 0; k < n_kinds; k++) {
        kinds[k].layers = members + at;
        for (uint32_t i = 0; i < n; i++)
            if (kind_of[i] == k)
                members[at++] = i;
        kinds[k].n_layers = (uint32_t)(members + at - kinds[k].layers);
    }
    s->facts->layers = kinds;
    s->facts->n_layers = n_kinds;
    return 0;
}

static int add_ropes(struct survey *s)
{
    struct engine_rope_facts *ropes =
        arena_calloc(&s->facts->arena, ARCH_MAX_ROPES, sizeof(*ropes));
    if (!ropes)
        return out_of_memory(s);
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++) {
        const struct rope_set *set = &s->model->shape.ropes[i];
        if (!set->n_rot)
            continue;
        ropes[s->facts->n_ropes++] = (struct engine_rope_facts){
            .rope = i,
            .n_rotated = set->n_rot,
            .scaling = scaling_word(set->scaling),
            .base = set->base,
            .factor = set->factor,
            .original_context = set->original_context,
        };
    }
    s->facts->ropes = ropes;
    return 0;
}

/* A config may name experts where every layer is dense: then the model has none. */
static void add_experts(struct survey *s)
{
    const struct model_shape *shape = &s->model->shape;
    const struct model_experts *e = &shape->experts;
    bool has_layer = false;
    for (uint32_t i = 0; i < shape->n_layers; i++)
        has_layer = has_layer || shape->layers[i].ffn->body == ARCH_FFN_EXPERTS ||
                    shape->layers[i].ffn->body == ARCH_FFN_BOTH;
    if (!e->n || !has_layer)
        return;
    s->facts->experts = (struct engine_expert_facts){
        .n = e->n,
        .n_used = e->n_used,
        .ffn_dim = e->ffn_dim,
        .shared_ffn_dim = e->shared_ffn_dim,
        .n_groups = e->n_groups,
        .n_groups_used = e->n_groups_used,
        .score = score_word(e->score),
        .renormalised = e->renormalise,
        .scale = (double)e->scale,
    };
}

/* Writes what limits the context. */
static int add_limit(struct survey *s)
{
    const struct model_shape *shape = &s->model->shape;
    char text[MAX_NAME] = "the files give this length";
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++) {
        const struct rope_set *set = &shape->ropes[i];
        bool stretches = set->scaling != ROPE_SCALING_NONE && set->scaling != ROPE_SCALING_DYNAMIC;
        if (set->n_rot && stretches && set->original_context < shape->context_tokens)
            snprintf(text, sizeof(text),
                     "the rope scaling %s extends the original %.0f tokens to this length",
                     scaling_word(set->scaling), set->original_context);
    }
    if (model_tensor(s->model, ARCH_POSITION_EMBD, 0, 0))
        snprintf(text, sizeof(text), "the position embedding has this number of rows");
    if (shape->context_tokens < shape->trained_tokens)
        snprintf(text, sizeof(text), "the engine serves no more of this model");
    s->facts->context_limit = arena_strndup(&s->facts->arena, text, strlen(text));
    return s->facts->context_limit ? 0 : out_of_memory(s);
}

/* --- tensors --- */

static void mark(const struct survey *s, enum arch_slot slot,
                 const struct checkpoint_tensor *tensor)
{
    if (tensor)
        s->marks[tensor - checkpoint_tensor_at(s->ckpt, 0)] |=
            IS_LOADED | (arch_slot_facts(slot)->by_expert ? IS_OF_EXPERTS : 0);
}

/* Experts, and heads, may have a tensor each. */
static void mark_slot(const struct survey *s, enum arch_slot slot, uint32_t layer)
{
    uint32_t n = model_has_experts(slot) ? s->model->shape.experts.n : 1, n_heads = 0;
    const struct checkpoint_tensor *const *heads =
        model_head_tensors(s->model, slot, layer, &n_heads);
    for (uint32_t i = 0; i < n; i++)
        mark(s, slot, model_tensor(s->model, slot, layer, i));
    for (uint32_t i = 0; heads && i < n_heads; i++)
        mark(s, slot, heads[i]);
}

static int mark_tensors(struct survey *s)
{
    s->marks = calloc(checkpoint_n_tensors(s->ckpt) + 1, sizeof(*s->marks));
    if (!s->marks)
        return out_of_memory(s);
    for (int i = 0; i < N_ARCH_SLOTS; i++) {
        enum arch_slot slot = (enum arch_slot)i;
        uint32_t n_layers = slot < ARCH_FIRST_LAYER_SLOT ? 1 : s->model->shape.n_layers;
        for (uint32_t layer = 0; layer < n_layers; layer++)
            mark_slot(s, slot, layer);
    }
    return 0;
}

/* A token uses the share of the chosen experts. */
static void count_weights(struct survey *s)
{
    const struct model_experts *e = &s->model->shape.experts;
    uint64_t n_of_experts = 0;
    for (uint64_t i = 0; i < checkpoint_n_tensors(s->ckpt); i++) {
        uint64_t n = checkpoint_tensor_at(s->ckpt, i)->n_elems;
        if (s->marks[i])
            s->facts->n_loaded += n;
        if (s->marks[i] & IS_OF_EXPERTS)
            n_of_experts += n;
    }
    s->facts->n_active = s->facts->n_loaded;
    if (e->n)
        s->facts->n_active -= n_of_experts / e->n * (e->n - e->n_used);
}

/* --- parts that are not used --- */

/* Counts one more part of a rule. `rule` is copied; the other texts are not. */
static int ignore_part(struct survey *s, const struct engine_ignored *part, size_t n_rule)
{
    uint32_t i = 0;
    while (i < s->facts->n_ignored &&
           (s->ignored[i].kind != part->kind || strlen(s->ignored[i].rule) != n_rule ||
            memcmp(s->ignored[i].rule, part->rule, n_rule) != 0))
        i++;
    if (i == MOST_IGNORED)
        return 0;
    struct engine_ignored *row = &s->ignored[i];
    if (i == s->facts->n_ignored) {
        *row = *part;
        row->n = row->n_bytes = 0;
        row->rule = arena_strndup(&s->facts->arena, part->rule, n_rule);
        if (!row->rule)
            return out_of_memory(s);
        s->facts->n_ignored++;
    }
    row->n += part->n;
    row->n_bytes += part->n_bytes;
    return 0;
}

/* The rule that leaves out the tensor: a beginning of names, or the layers that only draft. */
static int ignore_tensor(struct survey *s, const struct checkpoint_tensor *tensor)
{
    struct engine_ignored part = {ENGINE_IGNORED_TENSOR, "", not_needed,
                                  tensor->name,          1,  tensor->n_bytes};
    const char *rules = s->model->source.ignored_tensors;
    while (rules && *rules) {
        char rule[MAX_NAME];
        size_t n = strcspn(rules, "|");
        if (n < sizeof(rule)) {
            memcpy(rule, rules, n);
            rule[n] = '\0';
            part.rule = rule;
            if (arch_names_begin(rule, tensor->name))
                return ignore_part(s, &part, n);
        }
        rules += n + (rules[n] == '|');
    }
    part.rule = s->model->source.draft_layers ? s->model->source.draft_layers : "";
    part.why = "belongs to layers that only draft tokens";
    return ignore_part(s, &part, strcspn(part.rule, "|"));
}

/* Rows of the vocabulary that have no token. */
static int ignore_rows(struct survey *s)
{
    const struct model_shape *shape = &s->model->shape;
    const struct checkpoint_tensor *embd = model_tensor(s->model, ARCH_TOKEN_EMBD, 0, 0);
    uint64_t n = shape->n_vocab_rows - shape->vocab_size;
    if (!n || !embd)
        return 0;
    struct engine_ignored part = {ENGINE_IGNORED_ROW,
                                  "rows without a token",
                                  "a row without a token is never drawn",
                                  embd->name,
                                  n,
                                  n * embd->row_bytes};
    return ignore_part(s, &part, strlen(part.rule));
}

static int ignore_tensors(struct survey *s)
{
    int rc = 0;
    for (uint64_t i = 0; !rc && i < checkpoint_n_tensors(s->ckpt); i++)
        if (!s->marks[i])
            rc = ignore_tensor(s, checkpoint_tensor_at(s->ckpt, i));
    return rc ? rc : ignore_rows(s);
}

/* --- keys --- */

/* True for keys that other readers use: architecture, end ids, default sampling. */
static bool is_read_elsewhere(const char *key)
{
    static const char *const keys[] = {"architectures", "model_type", "eos_token_id",
                                       "generation_config.eos_token_id"};
    for (uint32_t i = 0; i < ARCH_N_OF(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return default_sampling_reads(key);
}

/* A key of a GGUF file that is none of the architecture. Readers of the format and of the tokenizer
 * use the first parts that are listed here. */
static int ignore_foreign_key(struct survey *s, const char *key)
{
    static const char *const read[] = {"general", "tokenizer", "split"};
    size_t n = strcspn(key, ".");
    for (uint32_t i = 0; i < ARCH_N_OF(read); i++)
        if (strlen(read[i]) == n && strncmp(read[i], key, n) == 0)
            return 0;
    struct engine_ignored part = {
        ENGINE_IGNORED_KEY, key, "belongs to no part of the architecture", key, 1, 0};
    return ignore_part(s, &part, n);
}

static int ignore_keys(struct survey *s)
{
    char prefix[MAX_NAME] = "";
    const char *name = checkpoint_architecture(s->ckpt);
    bool gguf = strcmp(checkpoint_format(s->ckpt), "gguf") == 0;
    size_t n = gguf ? strlen(name) : 0;
    int rc = 0;
    if (n + 2 > sizeof(prefix))
        return 0;
    memcpy(prefix, name, n);
    if (gguf)
        prefix[n++] = '.';
    for (uint64_t i = 0; !rc && i < checkpoint_n_keys(s->ckpt); i++) {
        const char *full = checkpoint_key(s->ckpt, i), *key = full + n;
        if (strncmp(full, prefix, n) != 0) {
            rc = ignore_foreign_key(s, full);
            continue;
        }
        const struct arch_fixed_key *fixed = arch_find_fixed_key(&s->model->source, key);
        if (arch_reads_key(&s->model->source, key) || !fixed || fixed->rule != ARCH_KEY_ANY ||
            is_read_elsewhere(key))
            continue;
        struct engine_ignored part = {ENGINE_IGNORED_KEY, key, describes, full, 1, 0};
        bool by_rule = fixed->key[strlen(fixed->key) - 1] == '*';
        part.rule = by_rule ? fixed->key : key;
        rc = ignore_part(s, &part, strlen(part.rule));
    }
    return rc;
}

/* --- all --- */

static int survey(struct survey *s)
{
    const struct model_shape *shape = &s->model->shape;
    struct engine_facts *facts = s->facts;
    facts->model = s->model->info;
    facts->norm = s->model->arch->norm == ARCH_NORM_RMS ? "rms" : "layer";
    facts->residual = shape->residual == ARCH_RESIDUAL_PARALLEL ? "parallel" : "sequential";
    facts->tied_output = s->model->tied_output;
    s->ignored = arena_calloc(&facts->arena, MOST_IGNORED, sizeof(*s->ignored));
    if (!s->ignored)
        return out_of_memory(s);
    facts->ignored = s->ignored;
    add_experts(s);
    int rc = add_limit(s);
    if (!rc)
        rc = add_layers(s);
    if (!rc)
        rc = add_ropes(s);
    if (!rc)
        rc = mark_tensors(s);
    if (!rc)
        count_weights(s);
    if (!rc)
        rc = ignore_tensors(s);
    return rc ? rc : ignore_keys(s);
}

int engine_facts_read(const struct checkpoint *ckpt, struct engine_facts *out_facts,
                      struct error *err)
{
    struct engine_facts facts = {.context_limit = ""};
    struct model model;
    struct survey s = {.ckpt = ckpt, .model = &model, .facts = &facts, .err = err};
    arena_init(&facts.arena, ARENA_BYTES, 0);
    int rc = model_init(&model, ckpt, NULL, err);
    if (!rc)
        rc = survey(&s);
    free(s.marks);
    model_fini(&model);
    if (rc)
        arena_fini(&facts.arena);
    else
        *out_facts = facts;
    return rc;
}

void engine_facts_fini(struct engine_facts *facts)
{
    arena_fini(&facts->arena);
}
