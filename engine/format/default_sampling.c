#include "engine/format/default_sampling.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"

enum sampling_source { SOURCE_FOLDER, SOURCE_GGUF, N_SOURCES };

/* A field with the range that requests have (engine/request/request_check.c). */
struct field {
    const char *keys[N_SOURCES]; /* NULL: the source has no such key */
    double low, high;
    bool low_open; /* `low` itself is outside the range */
    bool is_count; /* a uint32_t in place of a float; a negative number means 0 */
    size_t has, out;
};

#define AT(member)                                                                                 \
    .has = offsetof(struct default_sampling, has_##member),                                        \
    .out = offsetof(struct default_sampling, member)

static const struct field fields[] = {
    {.keys = {"generation_config.temperature", "general.sampling.temp"},
     .high = 100,
     AT(temperature)},
    {.keys = {"generation_config.top_k", "general.sampling.top_k"},
     .low = INT_MIN,
     .high = INT_MAX,
     .is_count = true,
     AT(top_k)},
    {.keys = {"generation_config.top_p", "general.sampling.top_p"},
     .high = 1,
     .low_open = true,
     AT(top_p)},
    {.keys = {"generation_config.min_p", "general.sampling.min_p"}, .high = 1, AT(min_p)},
    {.keys = {"generation_config.typical_p", NULL}, .high = 1, .low_open = true, AT(typical_p)},
    {.keys = {"generation_config.repetition_penalty", "general.sampling.penalty_repeat"},
     .high = 10,
     .low_open = true,
     AT(repetition_penalty)},
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

static const char do_sample_key[] = "generation_config.do_sample";
static const char suppress_key[] = "generation_config.suppress_tokens";

static void note(struct default_sampling_notes *notes, const char *key, const char *why)
{
    if (notes && notes->n < DEFAULT_SAMPLING_MAX_NOTES)
        snprintf(notes->texts[notes->n++], DEFAULT_SAMPLING_NOTE_BYTES, "%s is not used: %s", key,
                 why);
}

/* Requests have floats: a small double becomes 0, which may be outside the range. */
static bool is_in_range(const struct field *field, double value)
{
    if (!(value >= field->low && value <= field->high))
        return false;
    return !field->low_open || (double)(float)value > field->low;
}

static void set_field(const struct field *field, double value, struct default_sampling *out)
{
    const bool has = true;
    const uint32_t count = field->is_count && value > 0 ? (uint32_t)value : 0;
    const float number = (float)value;
    memcpy((char *)out + field->has, &has, sizeof(has));
    if (field->is_count)
        memcpy((char *)out + field->out, &count, sizeof(count));
    else
        memcpy((char *)out + field->out, &number, sizeof(number));
}

static void read_field(const struct checkpoint *ckpt, const char *key, const struct field *field,
                       struct default_sampling *out, struct default_sampling_notes *notes)
{
    char why[DEFAULT_SAMPLING_NOTE_BYTES / 2];
    struct error ignored;
    double value;
    if (!key || !checkpoint_has(ckpt, key))
        return;
    if (checkpoint_get_f64(ckpt, key, &value, &ignored) != 0) {
        note(notes, key, "the value is not a finite number");
    } else if (!is_in_range(field, value)) {
        snprintf(why, sizeof(why), "the value %g is not in %c%g, %g]", value,
                 field->low_open ? '(' : '[', field->low, field->high);
        note(notes, key, why);
    } else if (field->is_count && value != floor(value)) {
        snprintf(why, sizeof(why), "the value %g is not a whole number", value);
        note(notes, key, why);
    } else {
        set_field(field, value, out);
    }
}

/* Only generation_config.json has "do_sample"; a GGUF file has the temperature. */
static void read_do_sample(const struct checkpoint *ckpt, struct default_sampling *out,
                           struct default_sampling_notes *notes)
{
    struct error ignored;
    bool draws;
    if (!checkpoint_has(ckpt, do_sample_key))
        return;
    if (checkpoint_get_bool(ckpt, do_sample_key, &draws, &ignored) != 0) {
        note(notes, do_sample_key, "the value is neither true nor false");
        return;
    }
    if (!draws || !out->has_temperature)
        out->temperature = draws ? 1.0f : 0.0f;
    out->has_temperature = true;
}

static void read_suppressed(const struct checkpoint *ckpt, struct default_sampling *out,
                            struct default_sampling_notes *notes)
{
    char why[DEFAULT_SAMPLING_NOTE_BYTES / 2];
    struct checkpoint_array list;
    struct error ignored;
    if (!checkpoint_has(ckpt, suppress_key))
        return;
    if (checkpoint_get_array(ckpt, suppress_key, CHECKPOINT_INT, &list, &ignored) != 0) {
        note(notes, suppress_key, "the value is not a list of token ids");
        return;
    }
    if (list.n > DEFAULT_SAMPLING_MAX_SUPPRESSED) {
        snprintf(why, sizeof(why), "the list has %" PRIu64 " ids, at most %d are known", list.n,
                 DEFAULT_SAMPLING_MAX_SUPPRESSED);
        note(notes, suppress_key, why);
        return;
    }
    for (uint64_t i = 0; i < list.n; i++) {
        int64_t id = checkpoint_array_int(&list, i);
        if (id >= 0 && id <= UINT32_MAX)
            out->suppressed_ids[out->n_suppressed++] = (uint32_t)id;
    }
}

void default_sampling_read(const struct checkpoint *ckpt, struct default_sampling *out,
                           struct default_sampling_notes *out_notes)
{
    enum sampling_source source =
        strcmp(checkpoint_format(ckpt), "hf") == 0 ? SOURCE_FOLDER : SOURCE_GGUF;
    *out = (struct default_sampling){0};
    if (out_notes)
        out_notes->n = 0;
    for (size_t i = 0; i < N_FIELDS; i++)
        read_field(ckpt, fields[i].keys[source], &fields[i], out, out_notes);
    if (source == SOURCE_FOLDER) {
        read_do_sample(ckpt, out, out_notes);
        read_suppressed(ckpt, out, out_notes);
    }
}

bool default_sampling_reads(const char *key)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        for (size_t k = 0; k < N_SOURCES; k++)
            if (fields[i].keys[k] && strcmp(fields[i].keys[k], key) == 0)
                return true;
    return strcmp(do_sample_key, key) == 0 || strcmp(suppress_key, key) == 0;
}
