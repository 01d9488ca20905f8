/* Where the rows of a slot lie in the file's tensor (model.h). */
#include "engine/model/model_rows.h"

uint32_t model_file_dim(const struct model_shape *shape, uint32_t layer, enum arch_dim dim)
{
    return dim == ARCH_DIM_VOCAB ? shape->n_vocab_rows : shape_dim(shape, layer, dim);
}

/* Rows of the slot in the file; for a slot with a matrix per head, those of a head. */
static uint32_t outputs_of(const struct model *model, uint32_t layer, const struct arch_tensor *row)
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    bool cols = facts->rows == ARCH_DIM_ONE || row->transform == ARCH_TRANSFORM_HEADS_TRANSPOSED;
    return model_file_dim(&model->shape, layer, cols ? facts->cols : facts->rows);
}

/* True for a slot of the model, or of the layer. The attention norm of one layer and the FFN norm
 * of another may have one name. */
static bool has_slot(const struct model *model, uint32_t layer, enum arch_slot slot)
{
    return slot < ARCH_FIRST_LAYER_SLOT || shape_layer_has(&model->shape.layers[layer], slot);
}

uint32_t model_tensor_rows(const struct model *model, const struct arch_tensor *row, uint32_t layer,
                           uint32_t *out_begin)
{
    uint32_t n_rows = 0;
    *out_begin = 0;
    for (uint32_t i = 0; i < model->source.n_tensors; i++) {
        const struct arch_tensor *t = &model->source.tensors[i];
        if (t == row)
            *out_begin = n_rows;
        if (model->shared_with[i] == model->shared_with[row - model->source.tensors] &&
            has_slot(model, layer, t->slot))
            n_rows += outputs_of(model, layer, t);
    }
    return n_rows;
}

uint32_t model_unused_rows(const struct model *model, enum arch_slot slot)
{
    return slot == ARCH_POSITION_EMBD ? model->shape.position_offset : 0;
}

struct row_map model_row_map(const struct model *model, const struct arch_tensor *row,
                             uint32_t layer)
{
    struct row_map map = {0};
    uint32_t own = outputs_of(model, layer, row), groups = 1;
    uint32_t total = model_tensor_rows(model, row, layer, &map.begin);
    if (row->transform == ARCH_TRANSFORM_BY_HEAD)
        groups = model->shape.layers[layer].n_kv_heads;
    if (row->transform == ARCH_TRANSFORM_BY_QUERY_HEAD)
        groups = model->shape.layers[layer].n_heads;
    if (row->transform == ARCH_TRANSFORM_BY_STATE_HEAD)
        groups = model->shape.state.n_key_heads;
    if (row->transform == ARCH_TRANSFORM_BY_ROW ||
        row->transform == ARCH_TRANSFORM_TRANSPOSE_BY_ROW)
        groups = own;
    map.begin = map.begin / groups + model_unused_rows(model, row->slot);
    map.run = own / groups;
    map.stride = total / groups + model_unused_rows(model, row->slot);
    return map;
}
