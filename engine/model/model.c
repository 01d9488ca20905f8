#include "engine/model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model_find.h"
#include "engine/model/model_rows.h"
#include "engine/model/shape_keys.h"
#include "engine/model/shape_layers.h"

enum {
    N_LAYER_SLOTS = N_ARCH_SLOTS - ARCH_FIRST_LAYER_SLOT,
    N_EXPERT_SLOTS = 3, /* gate, up, down */
    MAX_TENSOR_NAME = 128,
};

static size_t slot_index(enum arch_slot slot, uint32_t layer)
{
    if (slot < ARCH_FIRST_LAYER_SLOT)
        return slot;
    return (size_t)slot + (size_t)layer * N_LAYER_SLOTS;
}

/* Number of a slot's parts (experts or heads), where a file may have a tensor for each part. */
static uint32_t n_parts(const struct model *model, const struct arch_tensor *row, uint32_t layer)
{
    const struct model_layer *facts = &model->shape.layers[layer];
    if (model_has_experts(row->slot))
        return model->shape.experts.n;
    if (arch_is_by_head(row))
        return row->slot == ARCH_ATTN_Q_NORM ? facts->n_heads : facts->n_kv_heads;
    return 1;
}

static size_t most_heads(const struct model *model)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < model->shape.n_layers; i++)
        if (model->shape.layers[i].n_heads > most)
            most = model->shape.layers[i].n_heads;
    return most;
}

static size_t head_index(const struct model *model, enum arch_slot slot, uint32_t layer)
{
    return (2 * (size_t)layer + (slot == ARCH_ATTN_K_NORM)) * most_heads(model);
}

/* The entry of a head whose norm has a tensor of its own. Models without these have no entries. */
static const struct checkpoint_tensor **head_entry(const struct model *model, enum arch_slot slot,
                                                   uint32_t layer, uint32_t head)
{
    assert(model->head_tensors);
    return &model->head_tensors[head_index(model, slot, layer) + head];
}

/* Expert matrices have an entry per expert, norms of heads may have one per head. */
static const struct checkpoint_tensor **tensor_entry(const struct model *model, enum arch_slot slot,
                                                     uint32_t layer, uint32_t expert)
{
    if (!model_has_experts(slot) && expert)
        return head_entry(model, slot, layer, expert);
    if (!model_has_experts(slot))
        return &model->tensors[slot_index(slot, layer)];
    size_t i_slot = (slot - ARCH_EXPERT_GATE) / 2;
    size_t n = model->shape.experts.n;
    return &model->expert_tensors[((size_t)layer * N_EXPERT_SLOTS + i_slot) * n + expert];
}

bool model_has_experts(enum arch_slot slot)
{
    return arch_slot_facts(slot)->by_expert && arch_slot_facts(slot)->rows != ARCH_DIM_ONE;
}

const struct checkpoint_tensor *model_tensor(const struct model *model, enum arch_slot slot,
                                             uint32_t layer, uint32_t expert)
{
    if (slot == ARCH_OUTPUT && model->tied_output)
        slot = ARCH_TOKEN_EMBD;
    if (model_has_experts(slot) && !model->expert_tensors)
        return NULL;
    return *tensor_entry(model, slot, layer, expert);
}

const struct checkpoint_tensor *const *
model_head_tensors(const struct model *model, enum arch_slot slot, uint32_t layer, uint32_t *out_n)
{
    const struct arch_tensor *row = arch_find_tensor(&model->source, slot);
    if (!row || !arch_is_by_head(row))
        return NULL;
    *out_n = n_parts(model, row, layer);
    return *out_n ? head_entry(model, slot, layer, 0) : NULL;
}

static bool plain_type(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* True for the weights of a norm that has its own weights for each head: a row per head. */
static bool has_own_heads(const struct model *model, enum arch_slot slot, uint32_t layer)
{
    return slot >= ARCH_ATTN_Q_NORM && slot <= ARCH_ATTN_K_NORM_BIAS &&
           model->shape.layers[layer].mixer->head_norm_scope == ARCH_SCOPE_OWN_HEAD;
}

/* The dimensions that the metadata give the row's tensor in the file. Returns their number.
 * `all_experts`: the tensor has a third dimension, of experts or heads. */
static uint32_t expected_dims(const struct model *model, const struct arch_tensor *row,
                              uint32_t layer, bool all_experts, uint64_t dims[3])
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    bool vector = facts->rows == ARCH_DIM_ONE, transposed = arch_is_transposed(row->transform);
    uint32_t begin, n_dims = 0;
    uint32_t n = model_tensor_rows(model, row, layer, &begin) + model_unused_rows(model, row->slot);
    uint64_t cols = vector ? 1 : model_file_dim(&model->shape, layer, facts->cols);
    dims[0] = dims[1] = dims[2] = 1;
    if (facts->by_head) {
        uint32_t n_heads = model->shape.layers[layer].n_heads;
        dims[0] = row->transform == ARCH_TRANSFORM_HEADS
                      ? cols
                      : model_file_dim(&model->shape, layer, facts->rows);
        dims[1] = all_experts ? n : (uint64_t)n * n_heads;
        dims[2] = all_experts ? n_heads : 1;
        return all_experts ? 3 : 2;
    }
    if (!vector)
        dims[n_dims++] = transposed ? n : cols;
    dims[n_dims++] = transposed ? cols : n;
    if (has_own_heads(model, row->slot, layer)) {
        dims[0] = model->shape.layers[layer].k_dim;
        if (!arch_is_by_head(row))
            dims[n_dims++] = n / dims[0];
    }
    if (all_experts)
        dims[n_dims++] = model->shape.experts.n;
    return n_dims;
}

/* True for the vectors of a state. A file may have them in any shape: a row of taps per channel,
 * a column of heads, a row per group. */
static bool is_flat(enum arch_slot slot)
{
    return slot >= ARCH_STATE_CONV_Q && slot <= ARCH_STATE_NORM;
}

/* Checks the elements of such a vector; those of a convolution lie in rows of its width. */
static int check_flat(const struct model *model, const struct arch_tensor *row, uint32_t layer,
                      const struct checkpoint_tensor *tensor, struct error *err)
{
    enum arch_dim dim = arch_slot_facts(row->slot)->cols;
    bool taps = dim == ARCH_DIM_STATE_KEY_TAPS || dim == ARCH_DIM_STATE_VALUE_TAPS;
    uint32_t begin, n = model_tensor_rows(model, row, layer, &begin);
    uint32_t width = model->shape.state.width;
    if (tensor->n_elems == n && (!taps || tensor->dims[0] == width))
        return 0;
    return checkpoint_bad_tensor(
        model->ckpt, tensor, err,
        "shape is [%" PRIu64 ", %" PRIu64 "], the metadata say %" PRIu32 " elements%s",
        tensor->dims[0], tensor->n_rows, n, taps ? ", and rows of the convolution's width" : "");
}

static int check_tensor(const struct model *model, const struct arch_tensor *row, uint32_t layer,
                        const struct checkpoint_tensor *tensor, struct error *err)
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    bool vector = facts->rows == ARCH_DIM_ONE;
    bool transposed = arch_is_transposed(row->transform);
    bool all_experts = (facts->by_expert && (vector || tensor->n_dims > 2)) ||
                       (facts->by_head && tensor->n_dims > 2);
    uint64_t dims[3];
    uint32_t n_dims = expected_dims(model, row, layer, all_experts, dims);
    if (is_flat(row->slot)) {
        int rc = check_flat(model, row, layer, tensor, err);
        if (rc)
            return rc;
    } else if (tensor->dims[0] != dims[0] || tensor->dims[1] != dims[1] ||
               tensor->dims[2] != dims[2] || tensor->n_rows != dims[1] * dims[2]) {
        return checkpoint_bad_tensor(
            model->ckpt, tensor, err,
            "shape is [%" PRIu64 ", %" PRIu64 "] in %u dimensions, the metadata say [%" PRIu64
            ", %" PRIu64 "] in %u",
            tensor->dims[0], tensor->n_rows, tensor->n_dims, dims[0], dims[1] * dims[2], n_dims);
    }
    if (checkpoint_check_type(model->ckpt, tensor, err) != 0)
        return err->status;
    if ((vector || transposed) && !plain_type(tensor->dtype))
        return checkpoint_unbuilt_tensor(model->ckpt, tensor, err,
                                         "a %s of type %s is not known, only F32, F16 and BF16 "
                                         "are; convert the model with one of "
                                         "these types for the tensor",
                                         vector ? "vector" : "transposed matrix",
                                         dtype_name(tensor->dtype));
    return 0;
}

/* True if the kind of the layer decides whether the layer has the slot. *out_part is the part of
 * the layer whose kind decides. */
static bool depends_on_kind(const struct model *model, enum arch_slot slot,
                            enum arch_part *out_part)
{
    bool lacks = false;
    if (slot < ARCH_FIRST_LAYER_SLOT)
        return false;
    *out_part = slot < ARCH_FFN_NORM ? ARCH_PART_MIXER : ARCH_PART_FFN;
    for (uint32_t i = 0; *out_part == ARCH_PART_MIXER && i < model->arch->n_mixers; i++)
        lacks |= !shape_mixer_has(model->arch->mixers[i].mixing, slot);
    for (uint32_t i = 0; *out_part == ARCH_PART_FFN && i < model->arch->n_ffns; i++)
        lacks |= !shape_ffn_has(&model->arch->ffns[i], slot);
    return lacks;
}

/* True for the tensors of K and V, of a layer that reads those of another. */
static bool is_shared_kv(const struct model *model, uint32_t layer, enum arch_slot slot)
{
    bool of_kv = (slot >= ARCH_ATTN_K && slot <= ARCH_ATTN_V_BIAS) || slot == ARCH_ATTN_K_NORM ||
                 slot == ARCH_ATTN_K_NORM_BIAS;
    return of_kv && model->shape.layers[layer].kv_source != layer;
}

/* The first of the row's names that the file has; NULL without one. `name` gets the first. */
static int locate_tensor(const struct model *model, const struct arch_tensor *row, uint32_t layer,
                         uint32_t expert, char name[MAX_TENSOR_NAME],
                         const struct checkpoint_tensor **out_tensor, struct error *err)
{
    *out_tensor = NULL;
    for (uint32_t i = 0;
         !*out_tensor && arch_name_at(row->name, i, layer, expert, name, MAX_TENSOR_NAME); i++)
        *out_tensor = checkpoint_tensor_find(model->ckpt, name);
    if (*out_tensor || arch_name_at(row->name, 0, layer, expert, name, MAX_TENSOR_NAME))
        return 0;
    return error_set(err, STATUS_INTERNAL, "architecture %s: bad tensor name pattern",
                     model->arch->name);
}

/* Shared experts and per-layer inputs are there if the metadata give them a width. Queries of low
 * rank are there if the metadata give them a rank, and values if they are not the keys. */
static bool is_required(const struct model *model, const struct arch_tensor *row, uint32_t layer)
{
    if (row->slot == ARCH_LATENT_Q_DOWN || row->slot == ARCH_LATENT_Q_NORM)
        return model->shape.latent.q_rank > 0;
    bool shared = row->slot >= ARCH_SHARED_GATE && row->slot <= ARCH_SHARED_DOWN;
    if (row->slot == ARCH_ATTN_V)
        return row->required && model->shape.layers[layer].values == SHAPE_VALUES_OWN;
    if ((row->slot >= ARCH_LAYER_EMBD && row->slot <= ARCH_LAYER_EMBD_NORM) ||
        (row->slot >= ARCH_LAYER_GATE && row->slot <= ARCH_LAYER_POST_NORM))
        return model->shape.layer_embd_dim > 0;
    return shared ? model->shape.experts.shared_ffn_dim > 0 : row->required;
}

/* The row's first tensor in the file; NULL without one. */
static const struct checkpoint_tensor *first_tensor(const struct model *model,
                                                    const struct arch_tensor *row)
{
    const struct checkpoint_tensor *tensor = NULL;
    uint32_t n_layers = row->slot < ARCH_FIRST_LAYER_SLOT ? 1 : model->shape.n_layers;
    char name[MAX_TENSOR_NAME];
    struct error ignored;
    for (uint32_t layer = 0; !tensor && layer < n_layers; layer++)
        if (locate_tensor(model, row, layer, 0, name, &tensor, &ignored) != 0)
            return NULL;
    return tensor;
}

/* Slots share tensors if their rows have one name, or if the file has one tensor for both. Each
 * row's list of names may have that of a tensor which holds several slots. */
static int find_shared(struct model *model, struct error *err)
{
    uint32_t n = model->source.n_tensors;
    const struct arch_tensor *rows = model->source.tensors;
    const struct checkpoint_tensor **first = calloc(n + 1, sizeof(*first));
    model->shared_with = calloc(n + 1, sizeof(*model->shared_with));
    if (!first || !model->shared_with) {
        free(first);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u slots", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;
        first[i] = first_tensor(model, &rows[i]);
        while (at < i && strcmp(rows[at].name, rows[i].name) != 0 &&
               (!first[i] || first[at] != first[i]))
            at++;
        model->shared_with[i] = at;
    }
    free(first);
    return 0;
}

/* The heads of a norm have one type. */
static int check_head(const struct model *model, const struct checkpoint_tensor *first,
                      const struct checkpoint_tensor *tensor, struct error *err)
{
    if (tensor->dtype == first->dtype)
        return 0;
    return checkpoint_unbuilt_tensor(
        model->ckpt, tensor, err,
        "norms of types %s and %s in one layer are not known, only norms of one type; convert the "
        "model with one type for a layer's norms",
        dtype_name(first->dtype), dtype_name(tensor->dtype));
}

/* The experts of a layer have one type. They lie in one tensor, or each has a tensor of its own. */
static int check_expert(const struct model *model, const struct arch_tensor *row,
                        const struct checkpoint_tensor *first,
                        const struct checkpoint_tensor *tensor, struct error *err)
{
    bool vector = arch_slot_facts(row->slot)->rows == ARCH_DIM_ONE;
    bool has_all = vector || tensor->n_dims > 2;
    if (tensor == first ? !has_all : has_all || (!vector && first->n_dims > 2))
        return checkpoint_bad_tensor(model->ckpt, tensor, err,
                                     "%u dimensions, where %s of its name %s", tensor->n_dims,
                                     tensor == first ? "a tensor" : "each tensor",
                                     tensor == first ? "holds all experts" : "holds one expert");
    if (tensor->dtype != first->dtype)
        return checkpoint_unbuilt_tensor(
            model->ckpt, tensor, err,
            "experts of types %s and %s in one layer are not known, only experts of one type; "
            "convert the model with one type for a layer's experts",
            dtype_name(first->dtype), dtype_name(tensor->dtype));
    return 0;
}

/* The search for tensors. `bound` has an element for each tensor of the file. */
struct binding {
    struct model *model;
    const char *prefix; /* before the names of keys */
    bool *bound;
};

static struct shape_reader reader_of(const struct binding *b, struct error *err)
{
    return (struct shape_reader){.ckpt = b->model->ckpt,
                                 .arch = b->model->arch,
                                 .source = &b->model->source,
                                 .prefix = b->prefix,
                                 .err = err};
}

/* A layer without a tensor that its kind needs: the error names the key that gives the kind. */
static int missing_tensor(const struct binding *b, const struct arch_tensor *row, uint32_t layer,
                          const char *name, struct error *err)
{
    const struct model *model = b->model;
    const struct model_layer *facts = &model->shape.layers[layer];
    struct shape_reader r = reader_of(b, err);
    enum arch_part part;
    if (!depends_on_kind(model, row->slot, &part) || !shape_layers_find_key(&r, part, facts))
        return checkpoint_missing_tensor(model->ckpt, name, err);
    return checkpoint_bad_key(
        model->ckpt, r.key, err, "layer %" PRIu32 " is \"%s\", and the file has no tensor \"%s\"",
        layer, part == ARCH_PART_MIXER ? facts->mixer->name : facts->ffn->name, name);
}

/* Kinds of layers may differ in the width of their heads. The error about a tensor of another shape
 * then names the key that gives the kind, too. */
static int name_kind(const struct binding *b, const struct arch_tensor *row, uint32_t layer,
                     struct error *err)
{
    const struct model *model = b->model;
    struct shape_reader r = reader_of(b, err);
    bool mixer = row->slot >= ARCH_FIRST_LAYER_SLOT && row->slot < ARCH_FFN_NORM;
    if (!mixer || !arch_find_param(&model->source, ARCH_PARAM_KEY_DIM, 1) ||
        !shape_layers_find_key(&r, ARCH_PART_MIXER, &model->shape.layers[layer]))
        return err->status;
    size_t n = strlen(err->message);
    snprintf(err->message + n, sizeof(err->message) - n,
             "; key \"%s\" makes layer %" PRIu32 " \"%s\"", r.key, layer,
             model->shape.layers[layer].mixer->name);
    return err->status;
}

static int bind_tensor(const struct binding *b, const struct arch_tensor *row, uint32_t layer,
                       uint32_t expert, struct error *err)
{
    struct model *model = b->model;
    char name[MAX_TENSOR_NAME];
    const struct checkpoint_tensor *tensor;
    const struct checkpoint_tensor *first =
        expert ? *tensor_entry(model, row->slot, layer, 0) : NULL;
    if (expert && !first) /* without the first part, a layer has none */
        return 0;
    int rc = locate_tensor(model, row, layer, expert, name, &tensor, err);
    if (!rc && !tensor && (first || is_required(model, row, layer)))
        return missing_tensor(b, row, layer, name, err);
    if (rc || !tensor)
        return rc;
    rc = check_tensor(model, row, layer, tensor, err);
    if (rc == STATUS_INVALID_ARGUMENT)
        return name_kind(b, row, layer, err);
    if (!rc && first)
        rc = model_has_experts(row->slot) ? check_expert(model, row, first, tensor, err)
                                          : check_head(model, first, tensor, err);
    if (rc)
        return rc;
    *tensor_entry(model, row->slot, layer, expert) = tensor;
    b->bound[tensor - checkpoint_tensor_at(model->ckpt, 0)] = true;
    if (arch_is_by_head(row))
        *head_entry(model, row->slot, layer, expert) = tensor;
    return 0;
}

/* Some files have tensors of K and V in layers that share those of another; no op reads them. */
static int skip_shared_kv(const struct binding *b, const struct arch_tensor *row, uint32_t layer,
                          struct error *err)
{
    char name[MAX_TENSOR_NAME];
    const struct checkpoint_tensor *tensor;
    int rc = locate_tensor(b->model, row, layer, 0, name, &tensor, err);
    if (!rc && tensor)
        b->bound[tensor - checkpoint_tensor_at(b->model->ckpt, 0)] = true;
    return rc;
}

static int bind_row(const struct binding *b, const struct arch_tensor *row, struct error *err)
{
    const struct model *model = b->model;
    bool global = row->slot < ARCH_FIRST_LAYER_SLOT;
    uint32_t n_layers = global ? 1 : model->shape.n_layers;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        if (!global && !shape_layer_has(&model->shape.layers[layer], row->slot))
            continue;
        bool skips = !global && is_shared_kv(model, layer, row->slot);
        uint32_t n = skips ? 1 : n_parts(model, row, layer);
        for (uint32_t expert = 0; expert < n; expert++) {
            int rc = skips ? skip_shared_kv(b, row, layer, err)
                           : bind_tensor(b, row, layer, expert, err);
            if (rc)
                return rc;
        }
    }
    return 0;
}

static size_t n_expert_entries(const struct model *model)
{
    return (size_t)model->shape.n_layers * N_EXPERT_SLOTS * model->shape.experts.n;
}

/* 0 without norms of heads that have a tensor each. With such norms, each head has an entry. */
static size_t n_head_entries(const struct model *model)
{
    const struct arch_tensor *q = arch_find_tensor(&model->source, ARCH_ATTN_Q_NORM);
    const struct arch_tensor *k = arch_find_tensor(&model->source, ARCH_ATTN_K_NORM);
    bool by_head = (q && arch_is_by_head(q)) || (k && arch_is_by_head(k));
    return by_head ? 2 * model->shape.n_layers * most_heads(model) : 0;
}

/* True for a tensor of a layer that only drafts tokens. */
static bool is_of_draft(const struct model *model, const struct checkpoint_tensor *tensor)
{
    const struct model_shape *s = &model->shape;
    char begin[MAX_TENSOR_NAME];
    for (uint32_t i = s->n_layers; i < s->n_layers + s->n_draft_layers; i++)
        if (arch_name_at(model->source.draft_layers, 0, i, 0, begin, sizeof(begin)) &&
            arch_names_begin(begin, tensor->name))
            return true;
    return false;
}

/* Refuses a tensor without a slot: if we ignored the tensor, results would silently differ. `bound`
 * has an element for each tensor of the file. */
static int refuse_unused_tensors(const struct model *model, const bool *bound, struct error *err)
{
    for (uint64_t i = 0; i < checkpoint_n_tensors(model->ckpt); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_tensor_at(model->ckpt, i);
        if (!bound[i] && !is_of_draft(model, tensor) &&
            !arch_names_begin(model->source.ignored_tensors, tensor->name))
            return checkpoint_unbuilt_tensor(
                model->ckpt, tensor, err,
                "this tensor is unknown in architecture %s with %u layers, and "
                "without it results would differ; use a model without the tensor, or "
                "a newer Sluice",
                model->arch->name, model->shape.n_layers);
    }
    return 0;
}

/* Without an output matrix in the file, the token embedding serves. */
static int tie_output(struct model *model, struct error *err)
{
    const struct arch_tensor *row = arch_find_tensor(&model->source, ARCH_OUTPUT);
    if (model->tensors[ARCH_OUTPUT])
        return 0;
    if (model->arch->output != ARCH_OUTPUT_TIED_IF_ABSENT || model->shape.needs_output || !row)
        return checkpoint_missing_tensor(model->ckpt, row ? row->name : "(output matrix)", err);
    model->tied_output = true;
    return 0;
}

static int out_of_memory(size_t n_slots, struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a directory of %zu",
                     n_slots);
}

static int bind_tensors(struct model *model, const char *prefix, struct error *err)
{
    const struct arch_source *source = &model->source;
    size_t n_slots = slot_index(N_ARCH_SLOTS, model->shape.n_layers - 1);
    size_t n_experts = n_expert_entries(model), n_heads = n_head_entries(model);
    int rc = find_shared(model, err);
    if (rc)
        return rc;
    model->tensors = calloc(n_slots, sizeof(*model->tensors));
    model->expert_tensors = n_experts ? calloc(n_experts, sizeof(*model->expert_tensors)) : NULL;
    model->head_tensors = n_heads ? calloc(n_heads, sizeof(*model->head_tensors)) : NULL;
    bool *bound = calloc(checkpoint_n_tensors(model->ckpt) + 1, sizeof(*bound));
    if (!model->tensors || (n_experts && !model->expert_tensors) ||
        (n_heads && !model->head_tensors) || !bound)
        rc = out_of_memory(n_slots + n_experts + n_heads, err);
    const struct binding b = {.model = model, .prefix = prefix, .bound = bound};
    for (uint32_t i = 0; !rc && i < source->n_tensors; i++)
        rc = bind_row(&b, &source->tensors[i], err);
    if (!rc)
        rc = tie_output(model, err);
    if (!rc)
        rc = refuse_unused_tensors(model, bound, err);
    free(bound);
    return rc;
}

int model_init(struct model *model, const struct checkpoint *ckpt, const struct arch *arch,
               struct error *err)
{
    char prefix[MODEL_PREFIX_BYTES];
    *model = (struct model){.ckpt = ckpt, .arch = arch};
    const struct arch_source *source = NULL;
    int rc = model_find_arch(ckpt, &model->arch, &source, prefix, err);
    if (rc)
        return rc;
    if (!arch_source_init(&model->source, source))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a model's table");
    if (!arch_source_is_sound(model->arch, &model->source))
        return error_set(err, STATUS_INTERNAL, "architecture %s: its table for %s is not sound",
                         model->arch->name, model->source.format);
    rc = shape_read(ckpt, model->arch, &model->source, prefix, &model->shape, err);
    if (!rc)
        rc = bind_tensors(model, prefix, err);
    if (!rc)
        rc = shape_keys_check_tensors(model, prefix, err);
    if (!rc)
        model_fill_info(model);
    return rc;
}

void model_fini(struct model *model)
{
    shape_fini(&model->shape);
    arch_source_fini(&model->source);
    free(model->tensors);
    free(model->expert_tensors);
    free(model->head_tensors);
    free(model->shared_with);
    model->tensors = model->expert_tensors = model->head_tensors = NULL;
    model->shared_with = NULL;
}
