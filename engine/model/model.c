#include "engine/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/escape.h"

enum {
    N_LAYER_SLOTS = N_ARCH_SLOTS - ARCH_FIRST_LAYER_SLOT,
    MAX_TENSOR_NAME = 128,
};

static size_t slot_index(enum arch_slot slot, uint32_t layer)
{
    if (slot < ARCH_FIRST_LAYER_SLOT)
        return slot;
    return (size_t)slot + (size_t)layer * N_LAYER_SLOTS;
}

uint32_t model_dim(const struct model_shape *shape, enum arch_dim dim)
{
    switch (dim) {
    case ARCH_DIM_ONE:
        return 1;
    case ARCH_DIM_HIDDEN:
        return shape->hidden_dim;
    case ARCH_DIM_HEADS:
        return shape->n_heads * shape->head_dim;
    case ARCH_DIM_KV:
        return shape->n_kv_heads * shape->head_dim;
    case ARCH_DIM_FFN:
        return shape->ffn_dim;
    case ARCH_DIM_VOCAB:
        return shape->vocab_size;
    case ARCH_DIM_CONTEXT:
        return shape->context_tokens;
    case ARCH_DIM_ROT_HALF:
        return shape->n_rot / 2;
    }
    return 0;
}

/* The length of a dimension in the file. */
static uint32_t file_dim(const struct model_shape *shape, enum arch_dim dim)
{
    return dim == ARCH_DIM_VOCAB ? shape->n_vocab_rows : model_dim(shape, dim);
}

uint32_t model_tensor_rows(const struct model *model, const struct arch_tensor *row,
                           uint32_t *out_begin)
{
    uint32_t n_rows = 0;
    *out_begin = 0;
    for (uint32_t i = 0; i < model->source->n_tensors; i++) {
        const struct arch_tensor *t = &model->source->tensors[i];
        if (t == row)
            *out_begin = n_rows;
        if (strcmp(t->name, row->name) == 0)
            n_rows += file_dim(&model->shape, t->rows == ARCH_DIM_ONE ? t->cols : t->rows);
    }
    return n_rows;
}

const struct checkpoint_tensor *model_tensor(const struct model *model, enum arch_slot slot,
                                             uint32_t layer)
{
    if (slot == ARCH_OUTPUT && model->tied_output)
        slot = ARCH_TOKEN_EMBD;
    return model->tensors[slot_index(slot, layer)];
}

static bool plain_type(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static int check_tensor(const struct model *model, const struct arch_tensor *row,
                        const struct checkpoint_tensor *tensor, struct error *err)
{
    uint32_t rows = file_dim(&model->shape, row->rows);
    uint32_t cols = file_dim(&model->shape, row->cols);
    uint32_t n_dims = row->rows == ARCH_DIM_ONE ? 1 : 2, begin;
    *(row->rows == ARCH_DIM_ONE ? &cols : &rows) = model_tensor_rows(model, row, &begin);
    if (tensor->dims[0] != cols || tensor->n_rows != rows || tensor->n_dims > 2)
        return checkpoint_bad_tensor(
            model->ckpt, tensor, err,
            "shape is [%" PRIu64 ", %" PRIu64 "] in %u dimensions, the metadata say [%u, %u] in %u",
            tensor->dims[0], tensor->n_rows, tensor->n_dims, cols, rows, n_dims);
    if (row->rows == ARCH_DIM_ONE && !plain_type(tensor->dtype))
        return checkpoint_unbuilt_tensor(model->ckpt, tensor, err,
                                         "a vector of type %s is not known, only F32, F16 and BF16 "
                                         "are; convert the model with vectors of one of these",
                                         dtype_name(tensor->dtype));
    return 0;
}

static int find_tensor(struct model *model, const struct arch_tensor *row, uint32_t layer,
                       uint64_t *n_found, struct error *err)
{
    char name[MAX_TENSOR_NAME];
    if (!arch_tensor_name(row, layer, name, sizeof(name)))
        return error_set(err, STATUS_INTERNAL, "architecture %s: bad tensor name pattern",
                         model->arch->name);
    const struct checkpoint_tensor *tensor = checkpoint_tensor_find(model->ckpt, name);
    if (!tensor)
        return row->required ? checkpoint_missing_tensor(model->ckpt, name, err) : 0;
    int rc = check_tensor(model, row, tensor, err);
    if (rc)
        return rc;
    model->tensors[slot_index(row->slot, layer)] = tensor;
    uint32_t begin;
    model_tensor_rows(model, row, &begin);
    *n_found += begin == 0; /* a shared tensor counts with its first slot only */
    return 0;
}

static bool is_bound(const struct model *model, const struct checkpoint_tensor *tensor)
{
    size_t n = slot_index(N_ARCH_SLOTS, model->shape.n_layers - 1);
    for (size_t i = 0; i < n; i++)
        if (model->tensors[i] == tensor)
            return true;
    return false;
}

/* Refuses a tensor without a slot: if we ignored the tensor, results would silently differ. */
static int refuse_unused_tensors(const struct model *model, struct error *err)
{
    for (uint64_t i = 0; i < checkpoint_n_tensors(model->ckpt); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_tensor_at(model->ckpt, i);
        if (!is_bound(model, tensor))
            return checkpoint_unbuilt_tensor(
                model->ckpt, tensor, err,
                "this tensor is unknown in architecture %s with %u layers, and "
                "without it results would differ; use a model without the tensor, or "
                "a newer Sluice",
                model->arch->name, model->shape.n_layers);
    }
    return 0;
}

static int bind_tensors(struct model *model, struct error *err)
{
    const struct arch_source *source = model->source;
    size_t n_slots = slot_index(N_ARCH_SLOTS, model->shape.n_layers - 1);
    uint64_t n_found = 0;
    model->tensors = calloc(n_slots, sizeof(*model->tensors));
    if (!model->tensors)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a directory of %zu",
                         n_slots);
    for (uint32_t i = 0; i < source->n_tensors; i++) {
        const struct arch_tensor *row = &source->tensors[i];
        uint32_t n = row->slot < ARCH_FIRST_LAYER_SLOT ? 1 : model->shape.n_layers;
        for (uint32_t layer = 0; layer < n; layer++) {
            int rc = find_tensor(model, row, layer, &n_found, err);
            if (rc)
                return rc;
        }
    }
    if (!model->tensors[ARCH_OUTPUT]) {
        const struct arch_tensor *row = arch_find_tensor(source, ARCH_OUTPUT);
        if (model->arch->output != ARCH_OUTPUT_TIED_IF_ABSENT || !row)
            return checkpoint_missing_tensor(model->ckpt, row ? row->name : "(output matrix)", err);
        model->tied_output = true;
    }
    return n_found == checkpoint_n_tensors(model->ckpt) ? 0 : refuse_unused_tensors(model, err);
}

static void fill_info(struct model *model)
{
    const struct model_shape *s = &model->shape;
    struct error ignored;
    uint64_t bytes[N_DTYPES] = {0}, n_params = 0;
    enum dtype most = DTYPE_F32;
    const char *name = "";
    for (uint64_t i = 0; i < checkpoint_n_tensors(model->ckpt); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(model->ckpt, i);
        bytes[t->dtype] += t->n_bytes;
        n_params += t->n_elems;
    }
    for (int t = 0; t < N_DTYPES; t++)
        if (bytes[t] > bytes[most])
            most = (enum dtype)t;
    if (checkpoint_get_string_or(model->ckpt, "general.name", "", &name, &ignored) != 0)
        name = "";
    model->info = (struct model_info){
        .architecture = model->arch->name,
        .name = name,
        .quantization = dtype_name(most),
        .vocab_size = s->vocab_size,
        .n_layers = s->n_layers,
        .hidden_dim = s->hidden_dim,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .ffn_dim = s->ffn_dim,
        .context_tokens = s->context_tokens,
        .n_params = n_params,
        .file_bytes = checkpoint_file_bytes(model->ckpt),
    };
}

static int find_arch(const struct checkpoint *ckpt, const struct arch **out_arch, struct error *err)
{
    const char *name;
    int rc = checkpoint_get_string(ckpt, "general.architecture", &name, NULL, err);
    if (rc)
        return rc;
    *out_arch = arch_find(name);
    if (*out_arch)
        return 0;
    char text[ESCAPE_MAX_BYTES];
    return checkpoint_unbuilt_key(
        ckpt, "general.architecture", err,
        "architecture \"%s\" is not known, only %s are; use a model of one "
        "of these",
        escape_text(name, strlen(name), text), arch_names());
}

int model_init(struct model *model, const struct checkpoint *ckpt, const struct arch *arch,
               struct error *err)
{
    *model = (struct model){.ckpt = ckpt, .arch = arch};
    int rc = arch ? 0 : find_arch(ckpt, &model->arch, err);
    if (rc)
        return rc;
    model->source = arch_find_source(model->arch, checkpoint_format(ckpt));
    if (!model->source)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "%s: architecture %s is not described for the format %s",
                         checkpoint_name(ckpt), model->arch->name, checkpoint_format(ckpt));
    if (!arch_source_is_sound(model->arch, model->source))
        return error_set(err, STATUS_INTERNAL, "architecture %s: its table for %s is not sound",
                         model->arch->name, model->source->format);
    rc = model_read_shape(ckpt, model->arch, model->source, &model->shape, err);
    if (!rc)
        rc = bind_tensors(model, err);
    if (!rc)
        fill_info(model);
    return rc;
}

void model_fini(struct model *model)
{
    free(model->tensors);
    model->tensors = NULL;
}
