#include "server/worker/base/settings_record.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/load_settings.h"
#include "base/settings/setting_names.h"
#include "base/strbuf.h"
#include "proto/config/model_config.h"
#include "server/worker/base/settings.h"

enum { FIRST_INHERITED_FD = 3 };

/* Returns n_specs if no option has that name. */
static size_t find_option(const struct option_spec *specs, size_t n_specs, const char *name)
{
    size_t i = 0;
    while (i < n_specs && !setting_same_name(name, specs[i].name))
        i++;
    return i;
}

static bool is_flag(const struct options *options, size_t i_spec)
{
    return strcmp(options_origin(options, i_spec), "flag") == 0;
}

/* Appends a field's value as its flag takes it; nothing for 0, false and "". */
static void add_value(const launch_record *record, const ProtobufCFieldDescriptor *field,
                      struct strbuf *out)
{
    const char *member = (const char *)record + field->offset, *text;
    protobuf_c_boolean truth;
    uint64_t number;
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        memcpy(&text, member, sizeof(text));
        strbuf_add_str(out, text);
    } else if (field->type == PROTOBUF_C_TYPE_BOOL) {
        memcpy(&truth, member, sizeof(truth));
        strbuf_add_str(out, truth ? "true" : "");
    } else {
        memcpy(&number, member, sizeof(number));
        if (number)
            strbuf_printf(out, "%" PRIu64, number);
    }
}

/* Sets the option `name` to `value`; empty: to its default. */
static int set_option(const char *name, const char *value, const struct option_spec *specs,
                      size_t n_specs, struct options *options, struct settings *settings,
                      struct error *err)
{
    size_t i = find_option(specs, n_specs, name);
    if (i == n_specs)
        return *value ? error_field(err, name, "is not a setting of this mode") : 0;
    const char *text = *value ? value : specs[i].default_text ? specs[i].default_text : "";
    if (is_flag(options, i) && strcmp(options_text(options, i), text) != 0)
        return error_field(err, name, "is \"%.80s\" in the launch record, but --%s gives \"%.80s\"",
                           text, specs[i].name, options_text(options, i));
    int rc = options_set(options, settings, specs[i].name, text, err);
    if (rc)
        snprintf(err->field, sizeof(err->field), "%s", name);
    return rc ? error_prefix(err, "launch record") : 0;
}

static int check_descriptors(const launch_record *record, const struct settings *settings,
                             struct error *err)
{
    for (size_t i = 0; i < record->n_packed_fds; i++) {
        uint32_t fd = record->packed_fds[i];
        if (fd < FIRST_INHERITED_FD)
            return error_field(err, "packed_fds",
                               "descriptor %u is a standard stream; inherited memory has "
                               "descriptor %d or a higher one",
                               fd, FIRST_INHERITED_FD);
        bool again = fd == settings->launch_fd; /* 0: the record came with a Wake */
        for (size_t k = 0; k < i; k++)
            again |= record->packed_fds[k] == fd;
        if (again)
            return error_field(err, "packed_fds", "descriptor %u is named twice", fd);
        if (fd > INT_MAX || fcntl((int)fd, F_GETFD) < 0)
            return error_field(err, "packed_fds", "descriptor %u was not inherited", fd);
    }
    return 0;
}

int settings_record_lay(const launch_record *record, const struct option_spec *specs,
                        size_t n_specs, struct options *options, struct settings *settings,
                        struct error *err)
{
    const ProtobufCMessageDescriptor *descriptor = record->base.descriptor;
    char count[24] = "";
    int rc = 0;
    for (unsigned i = 0; !rc && i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        struct strbuf value = {0};
        if (field->label == PROTOBUF_C_LABEL_REPEATED || field->type == PROTOBUF_C_TYPE_MESSAGE)
            continue;
        add_value(record, field, &value);
        rc = strbuf_failed(&value) ? error_no_memory(err)
                                   : set_option(field->name, strbuf_str(&value), specs, n_specs,
                                                options, settings, err);
        strbuf_fini(&value);
    }
    if (record->n_packed_fds)
        snprintf(count, sizeof(count), "%zu", record->n_packed_fds);
    if (!rc)
        rc = set_option("packed_fds", count, specs, n_specs, options, settings, err);
    if (!rc)
        rc = check_descriptors(record, settings, err);
    for (size_t i = 0; !rc && i < record->n_packed_fds; i++) /* the option's range bounds i */
        settings->packed_fd[i] = (int)record->packed_fds[i];
    return rc;
}

int settings_record_lay_config(const launch_record *record, const struct option_spec *specs,
                               size_t n_specs, const struct options *options,
                               struct settings *settings, struct error *err)
{
    for (size_t i = 0; i < load_settings_count(); i++) {
        const char *flag = load_setting_at(i)->flag;
        size_t i_spec = flag ? find_option(specs, n_specs, flag) : n_specs;
        if (i_spec < n_specs && is_flag(options, i_spec))
            return error_field(err, "config", "the launch record has it: leave --%s out", flag);
    }
    if (!record->config)
        return 0;
    int rc = model_config_check_max("config", record->config, err);
    if (!rc)
        model_config_lay(&settings->config, record->config);
    return rc;
}
