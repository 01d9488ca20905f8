#include <stdlib.h>
#include <string.h>

#include "engine/model/arch/arch.h"

/* Room for the rows of a source and all its bases. */
struct room {
    struct arch_param *params;
    struct arch_fixed_key *fixed_keys;
    struct arch_tensor *tensors;
    struct arch_pattern *patterns;
};

static void merge_params(struct arch_source *out, struct arch_param *rows,
                         const struct arch_source *from)
{
    for (uint32_t i = 0; i < from->n_params; i++) {
        uint32_t at = 0;
        while (at < out->n_params &&
               (rows[at].id != from->params[i].id || rows[at].of != from->params[i].of))
            at++;
        rows[at] = from->params[i];
        out->n_params += at == out->n_params;
    }
}

static void merge_fixed_keys(struct arch_source *out, struct arch_fixed_key *rows,
                             const struct arch_source *from)
{
    for (uint32_t i = 0; i < from->n_fixed_keys; i++) {
        uint32_t at = 0;
        while (at < out->n_fixed_keys && strcmp(rows[at].key, from->fixed_keys[i].key) != 0)
            at++;
        rows[at] = from->fixed_keys[i];
        out->n_fixed_keys += at == out->n_fixed_keys;
    }
}

static void merge_tensors(struct arch_source *out, struct arch_tensor *rows,
                          const struct arch_source *from)
{
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        uint32_t at = 0;
        while (at < out->n_tensors && rows[at].slot != from->tensors[i].slot)
            at++;
        rows[at] = from->tensors[i];
        out->n_tensors += at == out->n_tensors;
    }
}

static void drop_nameless(struct arch_source *out, struct arch_tensor *rows)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < out->n_tensors; i++)
        if (rows[i].name)
            rows[n++] = rows[i];
    out->n_tensors = n;
}

/* The bases' rows come first. */
static void merge(struct arch_source *out, const struct room *room, const struct arch_source *from)
{
    if (from->base)
        merge(out, room, from->base);
    if (from->n_patterns)
        out->n_patterns = 0;
    for (uint32_t i = 0; i < from->n_patterns; i++)
        room->patterns[out->n_patterns++] = from->patterns[i];
    if (from->ignored_tensors)
        out->ignored_tensors = from->ignored_tensors;
    merge_params(out, room->params, from);
    merge_fixed_keys(out, room->fixed_keys, from);
    merge_tensors(out, room->tensors, from);
}

bool arch_source_init(struct arch_source *out, const struct arch_source *from)
{
    size_t n_params = 1, n_fixed_keys = 1, n_tensors = 1, n_patterns = 1;
    *out = *from;
    for (const struct arch_source *s = from; s; s = s->base) {
        n_params += s->n_params;
        n_fixed_keys += s->n_fixed_keys;
        n_tensors += s->n_tensors;
        n_patterns += s->n_patterns;
    }
    struct room room = {
        .params = calloc(n_params, sizeof(*room.params)),
        .fixed_keys = calloc(n_fixed_keys, sizeof(*room.fixed_keys)),
        .tensors = calloc(n_tensors, sizeof(*room.tensors)),
        .patterns = calloc(n_patterns, sizeof(*room.patterns)),
    };
    out->base = NULL;
    out->params = room.params;
    out->fixed_keys = room.fixed_keys;
    out->tensors = room.tensors;
    out->patterns = room.patterns;
    out->ignored_tensors = NULL;
    out->n_params = out->n_fixed_keys = out->n_tensors = out->n_patterns = 0;
    if (!room.params || !room.fixed_keys || !room.tensors || !room.patterns)
        return false;
    merge(out, &room, from);
    drop_nameless(out, room.tensors);
    return true;
}

void arch_source_fini(struct arch_source *source)
{
    free((void *)(uintptr_t)source->params);
    free((void *)(uintptr_t)source->fixed_keys);
    free((void *)(uintptr_t)source->tensors);
    free((void *)(uintptr_t)source->patterns);
    *source = (struct arch_source){0};
}
