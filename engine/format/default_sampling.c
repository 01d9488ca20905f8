#include "engine/format/default_sampling.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"

enum sampling_source { SOURCE_FOLDER, SOURCE_GGUF, N_SOURCES };

/* A field with the range that requests have (engine/request/request_check.c). */
struct field {
    const char *keys[N_SOURCES]; /* NULL: the source has no such key */
    double low, high;
    bool low_open; /* `low` itself is outside the range */
    bool *has;
    float *out;
};

/* Reads the key of a field, if the file has the key. *out_value is in the field's range. */
static int read_field(const struct checkpoint *ckpt, const char *key, const struct field *field,
                      bool *out_has, double *out_value, struct error *err)
{
    double value;
    *out_has = key && checkpoint_has(ckpt, key);
    if (!*out_has)
        return 0;
    int rc = checkpoint_get_f64(ckpt, key, &value, err);
    if (rc)
        return rc;
    bool above = field->low_open ? value > field->low : value >= field->low;
    if (!above || value > field->high)
        return checkpoint_bad_key(ckpt, key, err, "the value %g is not in %c%g, %g]", value,
                                  field->low_open ? '(' : '[', field->low, field->high);
    *out_value = value;
    return 0;
}

/* A negative number of candidates means all of them, as 0 does. */
static int read_top_k(const struct checkpoint *ckpt, enum sampling_source source,
                      struct default_sampling *out, struct error *err)
{
    static const char *const keys[N_SOURCES] = {"generation_config.top_k",
                                                "general.sampling.top_k"};
    static const struct field field = {.low = INT_MIN, .high = INT_MAX};
    double value = 0;
    int rc = read_field(ckpt, keys[source], &field, &out->has_top_k, &value, err);
    if (rc || !out->has_top_k)
        return rc;
    if (value != floor(value))
        return checkpoint_bad_key(ckpt, keys[source], err, "the value %g is no whole number",
                                  value);
    out->top_k = value > 0 ? (uint32_t)value : 0;
    return 0;
}

/* generation_config.json alone says so; GGUF has the temperature. */
static int read_do_sample(const struct checkpoint *ckpt, struct default_sampling *out,
                          struct error *err)
{
    static const char key[] = "generation_config.do_sample";
    bool draws;
    if (!checkpoint_has(ckpt, key))
        return 0;
    int rc = checkpoint_get_bool(ckpt, key, &draws, err);
    if (rc)
        return rc;
    if (!draws || !out->has_temperature)
        out->temperature = draws ? 1.0f : 0.0f;
    out->has_temperature = true;
    return 0;
}

int default_sampling_read(const struct checkpoint *ckpt, struct default_sampling *out,
                          struct error *err)
{
    struct default_sampling s = {0};
    const struct field fields[] = {
        {.keys = {"generation_config.temperature", "general.sampling.temp"},
         .high = 100,
         .has = &s.has_temperature,
         .out = &s.temperature},
        {.keys = {"generation_config.top_p", "general.sampling.top_p"},
         .high = 1,
         .low_open = true,
         .has = &s.has_top_p,
         .out = &s.top_p},
        {.keys = {"generation_config.min_p", "general.sampling.min_p"},
         .high = 1,
         .has = &s.has_min_p,
         .out = &s.min_p},
        {.keys = {"generation_config.typical_p", NULL},
         .high = 1,
         .low_open = true,
         .has = &s.has_typical_p,
         .out = &s.typical_p},
        {.keys = {"generation_config.repetition_penalty", "general.sampling.penalty_repeat"},
         .high = 10,
         .low_open = true,
         .has = &s.has_repetition_penalty,
         .out = &s.repetition_penalty},
    };
    enum sampling_source source =
        strcmp(checkpoint_format(ckpt), "hf") == 0 ? SOURCE_FOLDER : SOURCE_GGUF;
    int rc = 0;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++) {
        double value = 0;
        rc = read_field(ckpt, fields[i].keys[source], &fields[i], fields[i].has, &value, err);
        if (!rc && *fields[i].has)
            *fields[i].out = (float)value;
    }
    if (!rc)
        rc = read_top_k(ckpt, source, &s, err);
    if (!rc && source == SOURCE_FOLDER)
        rc = read_do_sample(ckpt, &s, err);
    if (!rc)
        *out = s;
    return rc;
}
