#include "engine/model/shape_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "engine/model/shape_layers.h"

/* --- values --- */

/* A scalar, or an element of an array. A bool is the number 0 or 1. */
struct value {
    bool is_text;
    double number;
    const char *text; /* [n_bytes], not terminated */
    size_t n_bytes;
};

/* Elements of a key's value; a scalar has a single one. */
struct values {
    struct checkpoint_array array;
    bool is_array;
    struct value scalar;
    uint64_t n;
};

static int read_scalar(const struct checkpoint *ckpt, const char *key, struct value *out,
                       struct error *err)
{
    bool truth;
    struct error ignored;
    *out = (struct value){0};
    if (checkpoint_get_bool(ckpt, key, &truth, &ignored) == 0) {
        out->number = truth;
        return 0;
    }
    out->is_text = checkpoint_get_string(ckpt, key, &out->text, &out->n_bytes, &ignored) == 0;
    return out->is_text ? 0 : checkpoint_get_f64(ckpt, key, &out->number, err);
}

static int read_values(const struct checkpoint *ckpt, const char *key, struct values *out,
                       struct error *err)
{
    static const enum checkpoint_kind kinds[] = {CHECKPOINT_BOOL, CHECKPOINT_INT, CHECKPOINT_FLOAT,
                                                 CHECKPOINT_STRING};
    struct error ignored;
    *out = (struct values){.n = 1};
    for (uint32_t i = 0; i < ARCH_N_OF(kinds); i++) {
        if (checkpoint_get_array(ckpt, key, kinds[i], &out->array, &ignored) != 0)
            continue;
        out->is_array = true;
        out->n = out->array.n;
        return 0;
    }
    return read_scalar(ckpt, key, &out->scalar, err);
}

static struct value value_at(const struct values *values, uint64_t i)
{
    struct value value = {0};
    if (!values->is_array)
        return values->scalar;
    if (values->array.kind == CHECKPOINT_STRING) {
        value.is_text = true;
        value.text = checkpoint_array_string(&values->array, i, &value.n_bytes);
    } else if (values->array.kind == CHECKPOINT_FLOAT) {
        value.number = checkpoint_array_float(&values->array, i);
    } else {
        value.number = (double)checkpoint_array_int(&values->array, i);
    }
    return value;
}

static bool values_equal(const struct values *a, const struct values *b)
{
    if (a->is_array != b->is_array || a->n != b->n)
        return false;
    for (uint64_t i = 0; i < a->n; i++) {
        struct value x = value_at(a, i), y = value_at(b, i);
        if (x.is_text != y.is_text || x.n_bytes != y.n_bytes)
            return false;
        if (x.is_text ? memcmp(x.text, y.text, x.n_bytes) != 0 : x.number != y.number)
            return false;
    }
    return true;
}

/* Writes the value for a message. */
static const char *describe(const struct value *value, char out[ESCAPE_MAX_BYTES + 2])
{
    char text[ESCAPE_MAX_BYTES];
    if (value->is_text)
        snprintf(out, ESCAPE_MAX_BYTES + 2, "\"%s\"",
                 escape_text(value->text, value->n_bytes, text));
    else
        snprintf(out, ESCAPE_MAX_BYTES + 2, "%g", value->number);
    return out;
}

/* --- keys without a parameter --- */

static bool is_allowed(const struct arch_fixed_key *fixed, const struct value *value)
{
    char text[SHAPE_MAX_KEY];
    if (fixed->rule == ARCH_KEY_NUMBER)
        return !value->is_text && value->number == fixed->value;
    if (!value->is_text || value->n_bytes >= sizeof(text))
        return false;
    snprintf(text, sizeof(text), "%.*s", (int)value->n_bytes, value->text);
    return strlen(text) == value->n_bytes && arch_names_have(fixed->text, text);
}

/* Writes the known values for a message. */
static const char *list_known(const struct arch_fixed_key *fixed, char out[SHAPE_MAX_KEY])
{
    char name[SHAPE_MAX_KEY];
    size_t at = 0;
    if (fixed->rule == ARCH_KEY_NUMBER) {
        snprintf(out, SHAPE_MAX_KEY, "%g", fixed->value);
        return out;
    }
    for (uint32_t i = 0;
         at < SHAPE_MAX_KEY && arch_name_at(fixed->text, i, 0, 0, name, SHAPE_MAX_KEY); i++)
        at += (size_t)snprintf(out + at, SHAPE_MAX_KEY - at, "%s\"%s\"", i ? " or " : "", name);
    return out;
}

/* Checks that the key gives a range without limits. */
static int check_open(struct shape_reader *r, const char *full)
{
    struct values values;
    int rc = read_values(r->ckpt, full, &values, r->err);
    if (rc ||
        (values.n == 2 && !(value_at(&values, 0).number > 0) && isinf(value_at(&values, 1).number)))
        return rc;
    return checkpoint_unbuilt_key(r->ckpt, full, r->err,
                                  "limits other than 0 and infinity are not known; use a model "
                                  "without such limits");
}

/* Checks every element of the key's value. */
static int check_fixed(struct shape_reader *r, const char *full, const struct arch_fixed_key *fixed)
{
    struct values values;
    if (fixed->rule == ARCH_KEY_ANY || fixed->rule == ARCH_KEY_TENSOR)
        return 0;
    if (fixed->rule == ARCH_KEY_OPEN)
        return check_open(r, full);
    int rc = read_values(r->ckpt, full, &values, r->err);
    for (uint64_t i = 0; !rc && i < values.n; i++) {
        struct value value = value_at(&values, i);
        char found[ESCAPE_MAX_BYTES + 2], known[SHAPE_MAX_KEY];
        if (!is_allowed(fixed, &value))
            rc = checkpoint_unbuilt_key(
                r->ckpt, full, r->err,
                "the value %s is not known, only %s is; use a model with that value",
                describe(&value, found), list_known(fixed, known));
    }
    return rc;
}

/* --- the file's keys --- */

static int check_key(struct shape_reader *r, const char *full, const char *key)
{
    if (arch_reads_param(r->source, key) || shape_layers_take(r, full, key))
        return 0;
    const struct arch_fixed_key *fixed = arch_find_fixed_key(r->source, key);
    if (fixed)
        return check_fixed(r, full, fixed);
    if (arch_reads_pattern(r->source, key))
        return checkpoint_bad_key(r->ckpt, full, r->err,
                                  "a value of this form does not choose the kinds of layers");
    return checkpoint_unbuilt_key(
        r->ckpt, full, r->err,
        "this key is unknown in architecture %s and may change what the model "
        "computes; use a model without the key, or a newer Sluice",
        r->arch->name);
}

/* Refuses spellings of one key that have different values. */
static int check_spellings(struct shape_reader *r, const char *keys)
{
    char name[SHAPE_MAX_KEY], full[SHAPE_MAX_KEY];
    struct values first, other;
    bool by_layer = strchr(keys, '%') != NULL; /* a layer's number comes before that of all */
    if (by_layer || !shape_reader_find(r, keys))
        return 0;
    int rc = read_values(r->ckpt, r->key, &first, r->err);
    for (uint32_t i = 0; !rc && arch_name_at(keys, i, 0, 0, name, sizeof(name)); i++) {
        snprintf(full, sizeof(full), "%s%s", r->prefix, name);
        if (strcmp(full, r->key) == 0 || !checkpoint_has(r->ckpt, full))
            continue;
        rc = read_values(r->ckpt, full, &other, r->err);
        if (!rc && !values_equal(&first, &other))
            rc = checkpoint_bad_key(r->ckpt, full, r->err,
                                    "key \"%s\" spells the same thing and has another value",
                                    r->key);
    }
    return rc;
}

int shape_keys_check(struct shape_reader *r)
{
    size_t n_prefix = strlen(r->prefix);
    int rc = 0;
    for (uint64_t i = 0; !rc && i < checkpoint_n_keys(r->ckpt); i++) {
        const char *full = checkpoint_key(r->ckpt, i);
        if (strncmp(full, r->prefix, n_prefix) == 0)
            rc = check_key(r, full, full + n_prefix);
    }
    for (uint32_t i = 0; !rc && i < r->source->n_params; i++)
        if (r->source->params[i].key)
            rc = check_spellings(r, r->source->params[i].key);
    /* The keys of ARCH_PATTERN_WITHOUT are not spellings of one key. */
    for (uint32_t i = 0; !rc && i < r->source->n_patterns; i++)
        if (r->source->patterns[i].key && r->source->patterns[i].form != ARCH_PATTERN_WITHOUT)
            rc = check_spellings(r, r->source->patterns[i].key);
    return rc;
}

/* --- keys that tell of tensors --- */

/* *out_may: a layer is of a kind that can have the slot. */
static bool has_slot(const struct model *model, enum arch_slot slot, bool *out_may)
{
    bool global = slot < ARCH_FIRST_LAYER_SLOT, has = false;
    *out_may = global;
    for (uint32_t layer = 0; layer < (global ? 1 : model->shape.n_layers); layer++) {
        *out_may |= !global && shape_layer_has(&model->shape.layers[layer], slot);
        has |= model_tensor(model, slot, layer, 0) != NULL;
    }
    return has;
}

int shape_keys_check_tensors(const struct model *model, const char *prefix, struct error *err)
{
    for (uint32_t i = 0; i < model->source.n_fixed_keys; i++) {
        const struct arch_fixed_key *fixed = &model->source.fixed_keys[i];
        char full[SHAPE_MAX_KEY];
        bool says = false, may = false;
        snprintf(full, sizeof(full), "%s%s", prefix, fixed->key);
        if (fixed->rule != ARCH_KEY_TENSOR || !checkpoint_has(model->ckpt, full))
            continue;
        int rc = checkpoint_get_bool(model->ckpt, full, &says, err);
        if (rc)
            return rc;
        /* The key of a kind that no layer has says nothing. */
        bool has = has_slot(model, fixed->slot, &may);
        if (may && says != has)
            return checkpoint_bad_key(model->ckpt, full, err,
                                      "the value is %s, and the file has %s tensors as \"%s\"",
                                      says ? "true" : "false", says ? "no" : "such",
                                      arch_find_tensor(&model->source, fixed->slot)->name);
    }
    return 0;
}
