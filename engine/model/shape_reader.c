#include "engine/model/shape_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"

bool shape_reader_find(struct shape_reader *r, const char *keys)
{
    char name[SHAPE_MAX_KEY];
    for (uint32_t i = 0; arch_name_at(keys, i, r->layer, 0, name, sizeof(name)); i++) {
        snprintf(r->key, sizeof(r->key), "%s%s", r->prefix, name);
        if (checkpoint_has(r->ckpt, r->key))
            return true;
    }
    arch_name_at(keys, 0, r->layer, 0, name, sizeof(name));
    snprintf(r->key, sizeof(r->key), "%s%s", r->prefix, name);
    return false;
}

/* Finds the parameter's row; NULL without one. *out_present: the file has its key. */
static const struct arch_param *locate(struct shape_reader *r, enum arch_param_id id, uint32_t of,
                                       bool *out_present, int *out_rc)
{
    const struct arch_param *param = arch_find_param(r->source, id, of);
    *out_rc = 0;
    *out_present = false;
    if (!param && id < ARCH_PARAM_ROT_DIM)
        param = arch_find_param(r->source, id, 0);
    if (!param)
        return NULL;
    *out_present = param->key && shape_reader_find(r, param->key);
    if (!*out_present && param->absent == ARCH_ABSENT_MIXER_0)
        return locate(r, id, 0, out_present, out_rc);
    if (!*out_present && param->absent == ARCH_ABSENT_REFUSE)
        *out_rc = checkpoint_missing_key(r->ckpt, r->key, r->err);
    return param;
}

/* The element of a layer if the key has an array of a number per layer, else the key's number. */
static int number_of_layer(struct shape_reader *r, uint32_t layer, uint64_t *out)
{
    struct checkpoint_array array;
    struct error ignored;
    if (checkpoint_get_array(r->ckpt, r->key, CHECKPOINT_INT, &array, &ignored) != 0)
        return checkpoint_get_u64(r->ckpt, r->key, out, r->err);
    if (layer >= array.n)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu64 " elements, a layer %" PRIu32 " is there", array.n,
                                  layer);
    int64_t value = checkpoint_array_int(&array, layer);
    if (value < 0)
        return checkpoint_bad_key(r->ckpt, r->key, r->err, "element %" PRIu32 " is %" PRId64, layer,
                                  value);
    *out = (uint64_t)value;
    return 0;
}

int shape_reader_layer_u32(struct shape_reader *r, enum arch_param_id id, uint32_t of,
                           uint32_t layer, uint64_t min, uint64_t limit, uint64_t derived,
                           uint32_t *out)
{
    bool present;
    int rc;
    uint64_t value = derived;
    r->layer = layer;
    const struct arch_param *param = locate(r, id, of, &present, &rc);
    if (rc || !param)
        return rc;
    if (present) {
        rc = number_of_layer(r, layer, &value);
        if (rc)
            return rc;
    } else if (param->absent == ARCH_ABSENT_FALLBACK) {
        value = (uint64_t)param->fallback;
    }
    if (value < min || value > limit)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "the value%s %" PRIu64 " is not in %" PRIu64 "..%" PRIu64,
                                  present ? "" : " that other keys give,", value, min, limit);
    *out = (uint32_t)value;
    return 0;
}

int shape_reader_u32(struct shape_reader *r, enum arch_param_id id, uint32_t of, uint64_t min,
                     uint64_t limit, uint64_t derived, uint32_t *out)
{
    return shape_reader_layer_u32(r, id, of, 0, min, limit, derived, out);
}

int shape_reader_f64(struct shape_reader *r, enum arch_param_id id, uint32_t of, double min,
                     double max, double derived, double *out)
{
    bool present;
    int rc;
    double value = derived;
    const struct arch_param *param = locate(r, id, of, &present, &rc);
    if (rc || !param)
        return rc;
    if (present) {
        rc = checkpoint_get_f64(r->ckpt, r->key, &value, r->err);
        if (rc)
            return rc;
    } else if (param->absent == ARCH_ABSENT_FALLBACK) {
        value = param->fallback;
    }
    if (!(value >= min && value <= max))
        return checkpoint_bad_key(r->ckpt, r->key, r->err, "the value%s %g is not in [%g, %g]",
                                  present ? "" : " that other keys give,", value, min, max);
    *out = value;
    return 0;
}

int shape_reader_bool(struct shape_reader *r, enum arch_param_id id, uint32_t of, bool *out)
{
    bool present;
    int rc;
    const struct arch_param *param = locate(r, id, of, &present, &rc);
    if (rc || !param)
        return rc;
    if (present)
        return checkpoint_get_bool(r->ckpt, r->key, out, r->err);
    if (param->absent == ARCH_ABSENT_FALLBACK)
        *out = param->fallback != 0;
    return 0;
}

int shape_reader_text(struct shape_reader *r, enum arch_param_id id, uint32_t of, const char **out)
{
    bool present;
    int rc;
    locate(r, id, of, &present, &rc);
    *out = NULL;
    return rc || !present ? rc : checkpoint_get_string(r->ckpt, r->key, out, NULL, r->err);
}

bool shape_reader_has(struct shape_reader *r, enum arch_param_id id, uint32_t of)
{
    const struct arch_param *row = arch_find_param(r->source, id, of);
    return row && row->key && shape_reader_find(r, row->key);
}

const struct checkpoint_tensor *shape_reader_tensor(const struct shape_reader *r, const char *names)
{
    char name[SHAPE_MAX_KEY];
    const struct checkpoint_tensor *tensor = NULL;
    for (uint32_t i = 0; !tensor && arch_name_at(names, i, 0, 0, name, sizeof(name)); i++)
        tensor = checkpoint_tensor_find(r->ckpt, name);
    return tensor;
}

int shape_reader_unknown_word(struct shape_reader *r, const char *text, const char *what,
                              const char *known)
{
    char name[ESCAPE_MAX_BYTES];
    return checkpoint_unbuilt_key(r->ckpt, r->key, r->err,
                                  "%s \"%s\" is not known, only %s are; use a model with one of "
                                  "these",
                                  what, escape_text(text, strlen(text), name), known);
}
