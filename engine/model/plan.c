#include "engine/model/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine_config.h"
#include "engine/format/checkpoint.h"
#include "kernels/ops.h"

enum {
    WEIGHT_ALIGN = 64,
    DEVICE_ALIGN = 256,
    MAX_BLOCK_SIZE = 128, /* partition size of the attention kernel */
    MAX_STEP_ROWS = 1 << 16,
    MAX_STEP_SEQS = 1 << 14,
    MAX_STATE_SLOTS = 1 << 20,
    /* On the CPU: from a few rows on, arithmetic limits the head. So reading the head's weights
     * again for the next rows costs little. */
    LOGITS_AT_ONCE = 64,
};

static bool is_power_of_two(uint32_t n)
{
    return n && (n & (n - 1)) == 0;
}

static int check_kv_dtype(enum dtype type, const struct op_table *ops, struct error *err)
{
    char names[128] = "";
    size_t n = 0;
    if ((unsigned)type < N_DTYPES && (ops->kv_dtypes >> type & 1) != 0)
        return 0;
    for (enum dtype t = 0; t < N_DTYPES && n < sizeof(names); t++)
        if (ops->kv_dtypes >> t & 1)
            n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n > 0 ? ", " : "",
                                  dtype_name(t));
    return error_field(err, "kv_dtype", "%s is not one of %s, the types that kernels '%s' support",
                       dtype_name(type), names, ops->name);
}

uint32_t plan_state_slots(uint32_t n_seqs, uint64_t slot_bytes, uint64_t snapshot_bytes)
{
    uint64_t more = n_seqs / 4, most = MAX_STATE_SLOTS - n_seqs;
    if (snapshot_bytes && slot_bytes)
        more = snapshot_bytes / slot_bytes;
    return n_seqs + (uint32_t)(more < most ? more : most);
}

uint32_t plan_running_states(uint32_t n_slots, uint64_t slot_bytes, uint64_t snapshot_bytes)
{
    uint64_t spare = n_slots / 5;
    if (snapshot_bytes && slot_bytes)
        spare = snapshot_bytes / slot_bytes;
    if (!n_slots)
        return 0;
    return spare < n_slots ? n_slots - (uint32_t)spare : 1;
}

static int choose_state_slots(const struct model_shape *shape, const struct executor_config *cfg,
                              uint32_t *out_n, struct error *err)
{
    uint64_t n_floats = 0;
    for (uint32_t i = 0; i < shape->n_layers; i++)
        n_floats += shape_state_floats(shape, i);
    if (!n_floats)
        return 0;
    *out_n = cfg->state_slots
                 ? cfg->state_slots
                 : plan_state_slots(cfg->max_seqs, n_floats * sizeof(float), cfg->snapshot_bytes);
    if (*out_n > MAX_STATE_SLOTS)
        return error_field(err, "state_slots", "%u is not in 1..%d", *out_n, MAX_STATE_SLOTS);
    return 0;
}

/* Positions that a layer sees at most, its own included; 0: all. */
static uint32_t reach_of(const struct model_layer *layer)
{
    if (!layer->window || !layer->chunk)
        return layer->window + layer->chunk;
    return layer->window < layer->chunk ? layer->window : layer->chunk;
}

/* The longest reach of the layers that do not see a whole context; 0: all do. */
static uint32_t longest_reach(const struct model_shape *shape, uint32_t context)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < shape->n_layers; i++) {
        uint32_t reach = reach_of(&shape->layers[i]);
        if (shape->layers[i].n_kv_heads && reach < context && reach > longest)
            longest = reach;
    }
    return longest;
}

bool plan_has_window(const struct model_shape *shape, const struct step_sizes *steps,
                     uint32_t layer)
{
    if (!steps->window_reach || !shape->layers[layer].n_kv_heads)
        return false;
    for (uint32_t i = layer; i < shape->n_layers; i++) {
        uint32_t reach = reach_of(&shape->layers[i]);
        if (shape->layers[i].kv_source == layer && (!reach || reach > steps->window_reach))
            return false;
    }
    return true;
}

/* Blocks for windows; more would serve no running sequence. There is room for the windows of all
 * sequences and the rows of all steps in flight. A quarter more is for prefixes. */
static uint64_t window_blocks(const struct executor_config *cfg, uint32_t reach)
{
    uint64_t bs = cfg->kv_block_size;
    /* The window begins anywhere in a block. The row may need another block, and a copy one more.
     */
    uint64_t of_seq = (reach - 1 + bs - 1) / bs + 3, of_rows = (cfg->max_rows + bs - 1) / bs;
    uint64_t n = cfg->max_seqs * of_seq + of_rows * (cfg->pp ? cfg->pp : 1);
    return n + n / 4;
}

/* True if all layers with a window have chunks of the pool's reach. */
static bool windows_are_chunks(const struct model_shape *shape, const struct step_sizes *steps)
{
    for (uint32_t i = 0; i < shape->n_layers; i++)
        if (plan_has_window(shape, steps, shape->layers[i].kv_source) &&
            shape->layers[i].chunk != steps->window_reach)
            return false;
    return steps->window_reach > 0;
}

uint32_t plan_window_reach(const struct model_shape *shape, uint32_t context)
{
    struct step_sizes steps = {.window_reach = longest_reach(shape, context)};
    for (uint32_t i = 0; i < shape->n_layers; i++)
        if (plan_has_window(shape, &steps, i))
            return steps.window_reach;
    return 0;
}

static void choose_windows(const struct model_shape *shape, const struct executor_config *cfg,
                           uint32_t context, struct step_sizes *steps)
{
    steps->window_reach = cfg->splits_windows ? plan_window_reach(shape, context) : 0;
    if (!steps->window_reach)
        return;
    steps->windows_are_chunks = windows_are_chunks(shape, steps);
    steps->most_window_blocks = window_blocks(cfg, steps->window_reach);
    if (steps->most_window_blocks < steps->n_blocks) /* else nothing would be saved */
        steps->n_window_blocks = (uint32_t)steps->most_window_blocks;
}

int plan_steps(const struct model_shape *shape, const struct executor_config *cfg,
               const struct op_table *ops, struct step_sizes *out_steps,
               uint32_t *out_context_tokens, struct error *err)
{
    uint32_t bs = cfg->kv_block_size;
    uint32_t context = cfg->max_context_tokens ? cfg->max_context_tokens : shape->context_tokens;
    if (!is_power_of_two(bs) || bs > MAX_BLOCK_SIZE)
        return error_field(err, "kv_block_size", "%u is not a power of two in 1..%d", bs,
                           MAX_BLOCK_SIZE);
    int rc = check_kv_dtype(cfg->kv_dtype, ops, err);
    if (rc)
        return rc;
    if (context > shape->context_tokens)
        return error_field(err, "max_context_tokens", "%u exceeds the model's %u", context,
                           shape->context_tokens);
    if (!cfg->max_rows || cfg->max_rows > MAX_STEP_ROWS)
        return error_field(err, "max_rows", "%u is not in 1..%d", cfg->max_rows, MAX_STEP_ROWS);
    if (!cfg->max_seqs || cfg->max_seqs > MAX_STEP_SEQS)
        return error_field(err, "max_seqs", "%u is not in 1..%d", cfg->max_seqs, MAX_STEP_SEQS);
    uint64_t n_blocks = cfg->kv_tokens / bs + (cfg->kv_tokens % bs != 0);
    uint32_t max_logits = cfg->max_seqs + cfg->n_score_rows;
    /* Slot numbers (block · block_size + offset) have 32 bits. */
    uint64_t max_blocks = UINT32_MAX / bs;
    if (!n_blocks || n_blocks > max_blocks)
        return error_field(err, "kv_tokens", "%" PRIu64 " tokens are not in 1..%" PRIu64,
                           cfg->kv_tokens, max_blocks * bs);
    uint32_t n_states = 0;
    rc = choose_state_slots(shape, cfg, &n_states, err);
    if (rc)
        return rc;
    *out_steps = (struct step_sizes){
        .n_state_slots = n_states,
        .max_rows = cfg->max_rows,
        .max_seqs = cfg->max_seqs,
        .max_logits = max_logits,
        .n_logits =
            max_logits < LOGITS_AT_ONCE || weight_is_on_device(ops) ? max_logits : LOGITS_AT_ONCE,
        .max_blocks_per_seq = context / bs + (context % bs != 0),
        .n_blocks = (uint32_t)n_blocks,
        .block_size = bs,
        .kv_dtype = cfg->kv_dtype,
    };
    choose_windows(shape, cfg, context, out_steps);
    *out_context_tokens = context;
    return 0;
}

static void whole_heads(uint32_t begin, uint32_t n, uint32_t dim, uint32_t *out_begin,
                        uint32_t *out_end)
{
    *out_begin = begin * dim;
    *out_end = (begin + n) * dim;
}

/* The rank's segments of a dimension; NULL for one that is not divided by segments. */
static const struct segments *dim_segments(const struct rank_plan *plan, uint32_t i_layer,
                                           enum arch_dim dim)
{
    const struct layer_split *split = &plan->split.layers[i_layer];
    switch (dim) {
    case ARCH_DIM_QUERIES:
        return &split->queries;
    case ARCH_DIM_MIXED:
        return &split->mixed;
    case ARCH_DIM_FFN:
        return &split->ffn;
    case ARCH_DIM_EXPERT_FFN:
        return &split->expert_ffn;
    case ARCH_DIM_SHARED_FFN:
        return &split->shared_ffn;
    case ARCH_DIM_STATE_VALUES:
        return &split->state.out;
    case ARCH_DIM_VOCAB:
        return &plan->split.vocab;
    default:
        return NULL;
    }
}

/* The part of a dimension of the state that the rank computes. False for other dimensions. */
static bool state_range(const struct state_split *split, const struct model_state *s,
                        enum arch_dim dim, uint32_t *out_begin, uint32_t *out_end)
{
    switch (dim) {
    case ARCH_DIM_STATE_KEYS:
        whole_heads(split->key_begin, split->n_keys, s->key_dim, out_begin, out_end);
        return true;
    case ARCH_DIM_STATE_KEY_TAPS:
        whole_heads(split->key_begin, split->n_keys, s->key_dim * s->width, out_begin, out_end);
        return true;
    case ARCH_DIM_STATE_VALUES:
        whole_heads(split->value_begin, split->n_values, 1, out_begin, out_end);
        return true;
    case ARCH_DIM_STATE_VALUE_TAPS:
        whole_heads(split->value_begin, split->n_values, s->width, out_begin, out_end);
        return true;
    case ARCH_DIM_STATE_HEADS:
        whole_heads(split->head_begin, split->n_heads, 1, out_begin, out_end);
        return true;
    default:
        return false;
    }
}

/* The part [begin, end) of a dimension that the rank holds. False if ranks do not divide the
 * dimension. */
static bool rank_range(const struct rank_plan *plan, const struct model_shape *shape,
                       uint32_t i_layer, enum arch_dim dim, uint32_t *out_begin, uint32_t *out_end)
{
    const struct layer_split *split = &plan->split.layers[i_layer];
    const struct model_layer *layer = &shape->layers[plan->split.layer_begin + i_layer];
    if (state_range(&split->state, &shape->state, dim, out_begin, out_end))
        return true;
    const struct segments *segments = dim_segments(plan, i_layer, dim);
    if (segments) {
        *out_begin = segments_begin(segments);
        *out_end = segments_end(segments);
    } else if (dim == ARCH_DIM_HEADS_NOPE) {
        whole_heads(split->head_begin, split->n_heads, shape->latent.nope_dim, out_begin, out_end);
    } else if (dim == ARCH_DIM_HEADS_ROT) {
        whole_heads(split->head_begin, split->n_heads, shape->latent.n_rot, out_begin, out_end);
    } else if (dim == ARCH_DIM_HEADS) {
        whole_heads(split->head_begin, split->n_heads, 1, out_begin, out_end);
    } else if (dim == ARCH_DIM_KEYS) {
        whole_heads(split->kv_begin, split->n_kv_heads, layer->k_dim, out_begin, out_end);
    } else if (dim == ARCH_DIM_VALUES) {
        whole_heads(split->kv_begin, split->n_kv_heads, layer->v_dim, out_begin, out_end);
    } else {
        return false;
    }
    return true;
}

static void set_role(const struct rank_plan *plan, const struct model *model,
                     const struct arch_tensor *row, struct weight_place *place)
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    struct weight_desc *desc = &place->desc;
    desc->role = WEIGHT_LINEAR_COLUMN;
    if (facts->rows == ARCH_DIM_ONE && row->slot != ARCH_SHARED_ROUTER) {
        desc->role = WEIGHT_VECTOR;
    } else if (row->slot == ARCH_POSITION_EMBD || row->slot == ARCH_LAYER_EMBD ||
               (row->slot == ARCH_TOKEN_EMBD && !model->tied_output)) {
        /* A tied embedding is packed like a head for every tp, also where each rank has a part of
         * the head besides. So the bits of a lookup do not depend on tp. */
        desc->role = WEIGHT_EMBEDDING;
    } else if (facts->split == ARCH_SPLIT_ROW) {
        desc->role = WEIGHT_LINEAR_ROW;
        desc->k_segments = *dim_segments(plan, place->layer, facts->cols);
    }
    bool linear = desc->role == WEIGHT_LINEAR_COLUMN || desc->role == WEIGHT_LINEAR_ROW;
    /* A tied embedding also serves lookups. A router's rounding would choose other experts. */
    if (linear && row->slot != ARCH_TOKEN_EMBD && row->slot != ARCH_ROUTER &&
        !dtype_is_quantized(desc->source))
        desc->store = plan->store;
}

/* The matrix of a head: a stretch of the tensor's rows, or the columns of such a stretch. */
static void describe_head(const struct model *model, const struct arch_tensor *row,
                          uint32_t i_layer, struct weight_place *place)
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    uint32_t begin, n = model_tensor_rows(model, row, i_layer, &begin);
    uint32_t n_rows = shape_dim(&model->shape, i_layer, facts->rows);
    begin += place->expert * n;
    place->is_transposed = row->transform == ARCH_TRANSFORM_HEADS_TRANSPOSED;
    place->first_column = place->is_transposed ? begin : 0;
    place->map = (struct row_map){
        .begin = place->is_transposed ? 0 : begin, .run = n_rows, .stride = n_rows};
}

/* Describes where the weight's values lie in the file. */
static void describe_source(const struct model *model, const struct arch_tensor *row,
                            uint32_t i_layer, struct weight_place *place)
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    bool vector = facts->rows == ARCH_DIM_ONE;
    place->map = model_row_map(model, row, i_layer);
    place->is_transposed = arch_is_transposed(row->transform);
    place->plus_one = row->transform == ARCH_TRANSFORM_PLUS_ONE;
    place->minus_exp = row->transform == ARCH_TRANSFORM_MINUS_EXP;
    place->blocks = vector && facts->by_expert ? model->shape.experts.n : 1;
    place->block = model_has_experts(row->slot) && place->tensor->n_dims > 2 ? place->expert : 0;
    if (facts->by_head)
        describe_head(model, row, i_layer, place);
    /* The loader computes the values of these. Blocks of a quantized row are no columns. */
    bool computed = place->plus_one || place->minus_exp ||
                    (place->is_transposed && dtype_is_quantized(place->tensor->dtype));
    place->desc.source = computed ? DTYPE_F32 : place->tensor->dtype;
}

/* True if the rank holds a projection of all heads (struct layer_split). */
static bool is_whole(const struct rank_plan *plan, enum arch_slot slot, uint32_t i_layer)
{
    return slot >= ARCH_ATTN_Q && slot <= ARCH_ATTN_K_BIAS &&
           plan->split.layers[i_layer].projects_all_heads;
}

static int describe_weight(const struct rank_plan *plan, const struct model *model,
                           const struct arch_tensor *row, struct weight_place *place,
                           struct error *err)
{
    const struct arch_slot_facts *facts = arch_slot_facts(row->slot);
    uint32_t i_layer =
        row->slot < ARCH_FIRST_LAYER_SLOT ? 0 : plan->split.layer_begin + place->layer;
    bool vector = facts->rows == ARCH_DIM_ONE;
    enum arch_dim out_dim = vector ? facts->cols : facts->rows;
    uint32_t begin = 0, end = shape_dim(&model->shape, i_layer, out_dim);
    if (facts->split == ARCH_SPLIT_COLUMN && !facts->by_head &&
        !is_whole(plan, row->slot, place->layer) &&
        !rank_range(plan, &model->shape, place->layer, out_dim, &begin, &end))
        return error_set(err, STATUS_INTERNAL, "architecture %s: \"%s\" cannot be split that way",
                         model->arch->name, row->name);
    describe_source(model, row, i_layer, place);
    struct weight_desc *desc = &place->desc;
    place->first = begin;
    desc->n_rows = vector ? 1 : end - begin;
    desc->k_total =
        vector ? (end - begin) * place->blocks : shape_dim(&model->shape, i_layer, facts->cols);
    place->row_bytes = (uint32_t)dtype_row_bytes(desc->source, desc->k_total);
    set_role(plan, model, row, place);
    return 0;
}

bool plan_stage_has(const struct rank *rank, const struct model *model, enum arch_slot slot)
{
    bool first = rank_is_first(rank), last = rank_is_last(rank);
    if (slot == ARCH_TOKEN_EMBD)
        return first || (last && model->tied_output && rank->tp == 1);
    if (slot >= ARCH_POSITION_EMBD && slot <= ARCH_LAYER_EMBD_NORM)
        return first;
    if (slot >= ARCH_OUTPUT_NORM && slot <= ARCH_OUTPUT_BIAS)
        return last;
    return true;
}

static int add_place(struct rank_plan *plan, const struct model *model, const struct op_table *ops,
                     const struct arch_tensor *row, uint32_t layer, uint32_t expert,
                     struct error *err)
{
    bool global = row->slot < ARCH_FIRST_LAYER_SLOT;
    bool by_head = arch_slot_facts(row->slot)->by_head;
    const struct checkpoint_tensor *tensor = model_tensor(
        model, row->slot, global ? 0 : plan->split.layer_begin + layer, by_head ? 0 : expert);
    if (!tensor || (global && !plan_stage_has(&plan->rank, model, row->slot)))
        return 0;
    if (row->slot == ARCH_OUTPUT && model->tied_output && plan->rank.tp == 1)
        return 0; /* the decoder uses the embedding's pack */
    struct weight_place *place = &plan->places[plan->n_places];
    *place = (struct weight_place){
        .slot = row->slot, .layer = layer, .expert = expert, .tensor = tensor};
    if (!global)
        place->by_head = model_head_tensors(model, row->slot, plan->split.layer_begin + layer,
                                            &place->n_by_head);
    int rc = describe_weight(plan, model, row, place, err);
    if (rc)
        return rc;
    error_clear(err);
    size_t n_bytes = weight_bytes(ops, &place->desc, err);
    if (!n_bytes)
        return error_prefix(err, "%s: tensor \"%.100s\"", checkpoint_name(model->ckpt),
                            tensor->name);
    place->offset_bytes = plan->weights_bytes;
    place->n_bytes = n_bytes;
    uint64_t align = weight_is_on_device(ops) ? DEVICE_ALIGN : WEIGHT_ALIGN;
    plan->weights_bytes += (n_bytes + align - 1) / align * align;
    plan->source_bytes += place->desc.role == WEIGHT_VECTOR
                              ? tensor->n_bytes * (place->by_head ? place->n_by_head : 1)
                              : (uint64_t)place->desc.n_rows * place->row_bytes;
    plan->n_places++;
    return 0;
}

/* The parts [*out_begin, end) of a slot that the rank holds in a layer. Returns the end. */
static uint32_t parts_of(const struct rank_plan *plan, const struct model *model,
                         const struct arch_tensor *row, uint32_t layer, uint32_t *out_begin)
{
    const struct layer_split *split = &plan->split.layers[layer];
    *out_begin = 0;
    if (model_has_experts(row->slot))
        return model->shape.experts.n;
    if (!arch_slot_facts(row->slot)->by_head)
        return 1;
    *out_begin = split->head_begin;
    return split->head_begin + split->n_heads;
}

/* Adds the places of a layer's weights, either those by head or the others. */
static int place_layer(struct rank_plan *plan, const struct model *model,
                       const struct op_table *ops, uint32_t layer, bool by_head, struct error *err)
{
    const struct arch_source *source = &model->source;
    uint32_t begin;
    for (uint32_t i = 0; i < source->n_tensors; i++) {
        const struct arch_tensor *row = &source->tensors[i];
        if (arch_slot_facts(row->slot)->by_head != by_head ||
            (row->slot < ARCH_FIRST_LAYER_SLOT && layer > 0))
            continue;
        uint32_t end = parts_of(plan, model, row, layer, &begin);
        for (uint32_t part = begin; part < end; part++) {
            int rc = add_place(plan, model, ops, row, layer, part, err);
            if (rc)
                return rc;
        }
    }
    return 0;
}

static int place_weights(struct rank_plan *plan, const struct model *model,
                         const struct op_table *ops, struct error *err)
{
    const struct arch_source *source = &model->source;
    uint32_t n_layers = plan->split.n_layers;
    size_t n = 0;
    uint32_t begin;
    for (uint32_t i = 0; i < source->n_tensors; i++)
        for (uint32_t layer = 0; layer < n_layers; layer++)
            n += parts_of(plan, model, &source->tensors[i], layer, &begin);
    plan->places = calloc(n ? n : 1, sizeof(*plan->places));
    if (!plan->places)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the plan of %u layers",
                         n_layers);
    /* By layer, in the decoder's reading order. Ranks may have unequal numbers of heads. Places by
     * head come last, so that all ranks have the same places before them. */
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer < n_layers; layer++)
        rc = place_layer(plan, model, ops, layer, false, err);
    for (uint32_t layer = 0; !rc && layer < n_layers; layer++)
        rc = place_layer(plan, model, ops, layer, true, err);
    return rc;
}

static int make_digest(struct rank_plan *plan, const struct model *model,
                       const struct op_table *ops, struct error *err)
{
    struct sha256 *hash;
    int rc = sha256_create(&hash, err);
    if (rc)
        return rc;
    uint8_t source[SHA256_BYTES];
    checkpoint_digest(model->ckpt, source);
    sha256_update(hash, source, sizeof(source));
    sha256_update(hash, ops->name, strlen(ops->name) + 1);
    sha256_update(hash, ops->numerics, strlen(ops->numerics) + 1);
    sha256_update(hash, SLUICE_VERSION, sizeof(SLUICE_VERSION));
    uint32_t where[] = {plan->rank.index,     plan->rank.tp,           plan->rank.stage,
                        plan->rank.n_stages,  plan->split.layer_begin, plan->split.n_layers,
                        (uint32_t)plan->store};
    sha256_update(hash, where, sizeof(where));
    for (uint32_t i = 0; i < plan->n_places; i++) {
        const struct weight_place *p = &plan->places[i];
        uint64_t row[] = {p->slot, p->layer, p->expert, p->first, p->offset_bytes, p->n_bytes};
        sha256_update(hash, row, sizeof(row));
    }
    sha256_final(hash, plan->digest);
    return 0;
}

int plan_rank_init(struct rank_plan *plan, const struct model *model, const struct op_table *ops,
                   const struct rank *rank, enum weight_store store, const struct step_sizes *steps,
                   struct error *err)
{
    *plan = (struct rank_plan){.rank = *rank, .store = store, .steps = *steps};
    int rc = rank_split_init(&plan->split, rank, &model->shape, err);
    if (!rc)
        rc = plan_ops_check(ops, &model->shape, plan->split.layer_begin, plan->split.n_layers, err);
    if (rc)
        return rc;
    plan->header_bytes = weight_is_on_device(ops) ? 0 : PLAN_HEADER_BYTES;
    plan->weights_bytes = plan->header_bytes;
    rc = place_weights(plan, model, ops, err);
    if (!rc)
        rc = make_digest(plan, model, ops, err);
    return rc;
}

void plan_rank_fini(struct rank_plan *plan)
{
    free(plan->places);
    plan->places = NULL;
    plan->n_places = 0;
    rank_split_fini(&plan->split);
}
