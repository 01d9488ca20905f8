#include "proto/config/model_config.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const ProtobufCFieldDescriptor *field_of(const struct load_setting *row)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        &sluice__manager__v1__model_config__descriptor, row->field);
    assert(field); /* test_model_config.c compares rows and fields */
    return field;
}

static const void *member_const(const model_config *config, const ProtobufCFieldDescriptor *field)
{
    return (const char *)config + field->offset;
}

static void *member_of(model_config *config, const ProtobufCFieldDescriptor *field)
{
    return (char *)config + field->offset;
}

static const char *text_of(const model_config *config, const ProtobufCFieldDescriptor *field)
{
    const char *text;
    memcpy(&text, member_const(config, field), sizeof(text));
    return text ? text : "";
}

/* Returns a number, a bool, or the bits of a float. */
static uint64_t number_of(const model_config *config, const ProtobufCFieldDescriptor *field)
{
    const void *member = member_const(config, field);
    uint64_t u64;
    uint32_t u32;
    if (field->type == PROTOBUF_C_TYPE_UINT64) {
        memcpy(&u64, member, sizeof(u64));
        return u64;
    }
    memcpy(&u32, member, sizeof(u32));
    return u32;
}

static void set_number(model_config *config, const ProtobufCFieldDescriptor *field, uint64_t value)
{
    const protobuf_c_boolean has = 1;
    uint32_t u32 = (uint32_t)value;
    if (field->type == PROTOBUF_C_TYPE_UINT64)
        memcpy(member_of(config, field), &value, sizeof(value));
    else
        memcpy(member_of(config, field), &u32, sizeof(u32));
    memcpy((char *)config + field->quantifier_offset, &has, sizeof(has));
}

static void set_text(model_config *config, const ProtobufCFieldDescriptor *field, const char *text)
{
    memcpy(member_of(config, field), &text, sizeof(text));
}

static bool has_field(const model_config *config, const ProtobufCFieldDescriptor *field)
{
    protobuf_c_boolean has;
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return text_of(config, field)[0] != '\0';
    memcpy(&has, (const char *)config + field->quantifier_offset, sizeof(has));
    return has;
}

bool model_config_has(const model_config *config, size_t i)
{
    return has_field(config, field_of(load_setting_at(i)));
}

/* A flag "no-deterministic" says the opposite of its field. */
static bool is_opposite(const struct load_setting *row)
{
    return row->flag && strncmp(row->flag, "no-", 3) == 0;
}

void model_config_set(model_config *config, size_t i, const union load_value *value)
{
    const struct load_setting *row = load_setting_at(i);
    const ProtobufCFieldDescriptor *field = field_of(row);
    bool by_default = row->default_text && strcmp(row->default_text, "true") == 0;
    switch (row->kind) {
    case LOAD_NUMBER:
    case LOAD_BYTES:
    case LOAD_DURATION:
        if (value->number || (row->traits & LOAD_ZERO))
            set_number(config, field, value->number);
        break;
    case LOAD_WORD:
    case LOAD_TEXT:
    case LOAD_PATH:
        if (value->text && value->text[0])
            set_text(config, field, value->text);
        break;
    case LOAD_BOOL:
        if (value->truth != by_default)
            set_number(config, field, value->truth != is_opposite(row));
        break;
    }
}

/* --- checks --- */

static int refuse(const char *name, const struct load_setting *row, struct error *err,
                  const char *text)
{
    char field[ERROR_FIELD_BYTES];
    snprintf(field, sizeof(field), "%s.%s", name, row->field);
    return error_field(err, field, "%s", text);
}

static bool is_number(const struct load_setting *row)
{
    return row->kind == LOAD_NUMBER || row->kind == LOAD_BYTES || row->kind == LOAD_DURATION;
}

static int check_number(const char *name, const struct load_setting *row, uint64_t value,
                        uint64_t min, struct error *err)
{
    const char *unit = row->kind == LOAD_DURATION ? " ms" : row->kind == LOAD_BYTES ? " bytes" : "";
    char text[128];
    if (value >= min && value <= row->max)
        return 0;
    snprintf(text, sizeof(text), "%" PRIu64 " is not between %" PRIu64 " and %" PRIu64 "%s", value,
             min, row->max, unit);
    return refuse(name, row, err, text);
}

static int check_word(const char *name, const struct load_setting *row, const char *value,
                      struct error *err)
{
    char text[192] = "is none of";
    size_t n_value = strlen(value), n_text = strlen(text);
    const char *word = row->words;
    for (size_t n; (n = strcspn(word, "|")) > 0; word += n + (word[n] == '|')) {
        if (n == n_value && strncmp(word, value, n) == 0)
            return 0;
        if (n_text < sizeof(text))
            n_text += (size_t)snprintf(text + n_text, sizeof(text) - n_text, "%s %.*s",
                                       word == row->words ? "" : ",", (int)n, word);
    }
    return refuse(name, row, err, text);
}

static int check_length(const char *name, const struct load_setting *row, const char *value,
                        struct error *err)
{
    char text[64];
    if (strlen(value) <= row->max)
        return 0;
    snprintf(text, sizeof(text), "is longer than %" PRIu64 " bytes", row->max);
    return refuse(name, row, err, text);
}

static int check_value(const char *name, const struct load_setting *row,
                       const ProtobufCFieldDescriptor *field, const model_config *config,
                       struct error *err)
{
    switch (row->kind) {
    case LOAD_NUMBER:
    case LOAD_BYTES:
    case LOAD_DURATION:
        return check_number(name, row, number_of(config, field), row->min, err);
    case LOAD_WORD:
        return check_word(name, row, text_of(config, field), err);
    case LOAD_TEXT:
    case LOAD_PATH:
        return check_length(name, row, text_of(config, field), err);
    case LOAD_BOOL:
        break;
    }
    return 0;
}

static bool same_group(const struct load_setting *a, const struct load_setting *b)
{
    return a->group && b->group && strcmp(a->group, b->group) == 0;
}

/* Row i is set: checks the rows that exclude row i or that row i needs. */
static int check_others(const char *name, size_t i, const model_config *config, struct error *err)
{
    const struct load_setting *row = load_setting_at(i);
    char text[192];
    for (size_t k = 0; k < load_settings_count(); k++) {
        const struct load_setting *other = load_setting_at(k);
        bool has = model_config_has(config, k);
        if (k < i && has && same_group(row, other)) {
            snprintf(text, sizeof(text), "only one of %s and %s may be given", other->field,
                     row->field);
            return refuse(name, row, err, text);
        }
        if (!has && row->needs && strcmp(row->needs, other->field) == 0) {
            snprintf(text, sizeof(text), "has no effect without %s: give %s too, or leave both out",
                     row->needs, row->needs);
            return refuse(name, row, err, text);
        }
    }
    return 0;
}

int model_config_check(const char *name, const model_config *config, struct error *err)
{
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        const ProtobufCFieldDescriptor *field = field_of(row);
        if (!has_field(config, field))
            continue;
        if (row->traits & LOAD_NOT_BUILT) {
            refuse(name, row, err, "is not built yet");
            err->status = STATUS_UNIMPLEMENTED;
            return err->status;
        }
        if (check_value(name, row, field, config, err) != 0 ||
            check_others(name, i, config, err) != 0)
            return err->status;
    }
    return 0;
}

int model_config_check_max(const char *name, const model_config *config, struct error *err)
{
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        const ProtobufCFieldDescriptor *field = field_of(row);
        if (!is_number(row) || !has_field(config, field))
            continue;
        if (check_number(name, row, number_of(config, field), 0, err) != 0)
            return err->status;
    }
    return 0;
}

static bool needs_gpu(const struct load_setting *row, const ProtobufCFieldDescriptor *field,
                      const model_config *config)
{
    if (!row->gpu_value || !has_field(config, field))
        return false;
    if (!row->gpu_value[0])
        return true;
    if (row->kind == LOAD_BOOL)
        return (number_of(config, field) != 0) == (strcmp(row->gpu_value, "true") == 0);
    return strcmp(text_of(config, field), row->gpu_value) == 0;
}

const struct load_setting *model_config_gpu_row(const model_config *config)
{
    for (size_t i = 0; i < load_settings_count(); i++)
        if (needs_gpu(load_setting_at(i), field_of(load_setting_at(i)), config))
            return load_setting_at(i);
    return NULL;
}

/* --- two messages --- */

static size_t pack(const model_config *config, uint8_t **out_bytes)
{
    size_t n = config ? protobuf_c_message_get_packed_size(&config->base) : 0;
    *out_bytes = malloc(n ? n : 1);
    if (*out_bytes && n)
        protobuf_c_message_pack(&config->base, *out_bytes);
    return n;
}

bool model_config_equal(const model_config *a, const model_config *b)
{
    uint8_t *bytes_a, *bytes_b;
    size_t n_a = pack(a, &bytes_a), n_b = pack(b, &bytes_b);
    bool equal = bytes_a && bytes_b && n_a == n_b && memcmp(bytes_a, bytes_b, n_a) == 0;
    free(bytes_a);
    free(bytes_b);
    return equal;
}

static void clear_group(model_config *config, const struct load_setting *row)
{
    const protobuf_c_boolean has = 0;
    for (size_t i = 0; i < load_settings_count(); i++) {
        const ProtobufCFieldDescriptor *field = field_of(load_setting_at(i));
        if (!same_group(row, load_setting_at(i)))
            continue;
        if (field->type == PROTOBUF_C_TYPE_STRING)
            set_text(config, field, (const char *)protobuf_c_empty_string);
        else
            memcpy((char *)config + field->quantifier_offset, &has, sizeof(has));
    }
}

void model_config_lay(model_config *config, const model_config *over)
{
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        const ProtobufCFieldDescriptor *field = field_of(row);
        if (!has_field(over, field))
            continue;
        clear_group(config, row);
        if (field->type == PROTOBUF_C_TYPE_STRING)
            set_text(config, field, text_of(over, field));
        else
            set_number(config, field, number_of(over, field));
    }
}
