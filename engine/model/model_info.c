/* The facts of a model for its users (engine_stats.h). */
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model_rows.h"
#include "engine/model/plan.h"

#define LAYER_OFFSET(field) offsetof(struct model_layer, field)

/* The largest number of all layers in the field at `offset`. */
static uint32_t largest(const struct model_shape *s, size_t offset)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        uint32_t value;
        memcpy(&value, (const char *)&s->layers[i] + offset, sizeof(value));
        most = value > most ? value : most;
    }
    return most;
}

/* Keys and values of a token in all layers, or in those with a window alone. A layer that reads the
 * cache of another layer adds nothing. With latent attention, V lies in K. */
static uint64_t count_kv_elements(const struct model_shape *s, bool windows)
{
    const struct step_sizes steps = {.window_reach = plan_window_reach(s, s->context_tokens)};
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const struct model_layer *layer = &s->layers[i];
        bool v_in_k = layer->mixer->mixing == ARCH_MIXING_LATENT;
        if (layer->kv_source == i && (!windows || plan_has_window(s, &steps, i)))
            n += (uint64_t)layer->n_kv_heads * (layer->k_dim + (v_in_k ? 0 : layer->v_dim));
    }
    return n;
}

/* Floats of a sequence's states in all layers. */
static uint64_t count_state_elements(const struct model_shape *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_layers; i++)
        n += shape_state_floats(s, i);
    return n;
}

void model_fill_info(struct model *model)
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
        .n_heads = largest(s, LAYER_OFFSET(n_heads)),
        .n_kv_heads = largest(s, LAYER_OFFSET(n_kv_heads)),
        .head_dim = largest(s, LAYER_OFFSET(k_dim)),
        .ffn_dim = largest(s, LAYER_OFFSET(ffn_dim)),
        .kv_elements = count_kv_elements(s, false),
        .window_elements = count_kv_elements(s, true),
        .window_tokens = plan_window_reach(s, s->context_tokens),
        .state_elements = count_state_elements(s),
        .context_tokens = s->context_tokens,
        .trained_tokens = s->trained_tokens,
        .long_rope_after = s->long_rope_after,
        .n_params = n_params,
        .file_bytes = checkpoint_file_bytes(model->ckpt),
    };
}
