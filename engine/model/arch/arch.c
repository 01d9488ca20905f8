#include "engine/model/arch/arch.h"

#include <stdio.h>
#include <string.h>

static const struct arch *const architectures[] = {&arch_llama, &arch_gpt2, &arch_bloom};

enum { N_ARCHITECTURES = sizeof(architectures) / sizeof(architectures[0]) };

const struct arch *arch_find(const char *name)
{
    for (uint32_t i = 0; i < N_ARCHITECTURES; i++)
        if (strcmp(architectures[i]->name, name) == 0)
            return architectures[i];
    return NULL;
}

const char *arch_names(void)
{
    return "llama, gpt2, bloom";
}

const struct arch_source *arch_find_source(const struct arch *arch, const char *format)
{
    for (uint32_t i = 0; i < arch->n_sources; i++)
        if (strcmp(arch->sources[i].format, format) == 0)
            return &arch->sources[i];
    return NULL;
}

const struct arch_tensor *arch_find_tensor(const struct arch_source *source, enum arch_slot slot)
{
    for (uint32_t i = 0; i < source->n_tensors; i++)
        if (source->tensors[i].slot == slot)
            return &source->tensors[i];
    return NULL;
}

const struct arch_param *arch_find_param(const struct arch_source *source, enum arch_param_id id)
{
    for (uint32_t i = 0; i < source->n_params; i++)
        if (source->params[i].id == id)
            return &source->params[i];
    return NULL;
}

bool arch_tensor_name(const struct arch_tensor *tensor, uint32_t layer, char *out, uint32_t n_bytes)
{
    const char *mark = strstr(tensor->name, "%u");
    size_t n_before = mark ? (size_t)(mark - tensor->name) : strlen(tensor->name);
    int n = snprintf(out, n_bytes, "%.*s", (int)n_before, tensor->name);
    if (mark && n >= 0 && (uint32_t)n < n_bytes)
        n += snprintf(out + n, n_bytes - (uint32_t)n, "%u%s", layer, mark + 2);
    return n >= 0 && (uint32_t)n < n_bytes && !strchr(out, '%');
}

/* True if the architecture uses the parameter. Keys that only other positions use are refused as
 * unknown. */
static bool takes_param(const struct arch *arch, enum arch_param_id id)
{
    if (id == ARCH_PARAM_ALIBI_BIAS)
        return arch->position == ARCH_POSITION_ALIBI;
    return id < ARCH_PARAM_ROT_DIM || arch->position == ARCH_POSITION_ROPE;
}

static bool params_are_sound(const struct arch *arch, const struct arch_source *source)
{
    bool seen[N_ARCH_PARAMS] = {false};
    uint32_t n_taken = 0;
    for (enum arch_param_id id = 0; id < N_ARCH_PARAMS; id++)
        n_taken += takes_param(arch, id);
    for (uint32_t i = 0; i < source->n_params; i++) {
        const struct arch_param *p = &source->params[i];
        if ((unsigned)p->id >= N_ARCH_PARAMS || seen[p->id] || !takes_param(arch, p->id) ||
            (unsigned)p->absent > ARCH_ABSENT_FALLBACK ||
            (p->absent != ARCH_ABSENT_FALLBACK && p->fallback != 0) ||
            (p->absent == ARCH_ABSENT_FALLBACK && p->id == ARCH_PARAM_ROPE_SCALING))
            return false;
        seen[p->id] = true;
    }
    return source->n_params == n_taken;
}

/* False if a slot that shares the tensor differs in `required`. */
static bool agrees_with_others(const struct arch_source *source, const struct arch_tensor *row)
{
    for (uint32_t i = 0; i < source->n_tensors; i++)
        if (strcmp(source->tensors[i].name, row->name) == 0 &&
            source->tensors[i].required != row->required)
            return false;
    return true;
}

bool arch_source_is_sound(const struct arch *arch, const struct arch_source *source)
{
    bool seen[N_ARCH_SLOTS] = {false};
    if ((source->rope_style != ROPE_NONE) != (arch->position == ARCH_POSITION_ROPE))
        return false;
    for (uint32_t i = 0; i < source->n_fixed_keys; i++)
        if (source->fixed_keys[i].any_value && source->fixed_keys[i].value != 0)
            return false;
    for (uint32_t i = 0; i < source->n_tensors; i++) {
        const struct arch_tensor *t = &source->tensors[i];
        if ((unsigned)t->slot >= N_ARCH_SLOTS || seen[t->slot] ||
            (unsigned)t->rows > ARCH_DIM_ROT_HALF || (unsigned)t->cols > ARCH_DIM_ROT_HALF ||
            (unsigned)t->split > ARCH_SPLIT_ROW || !agrees_with_others(source, t))
            return false;
        seen[t->slot] = true;
    }
    return params_are_sound(arch, source);
}
