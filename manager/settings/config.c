#include "manager/settings/config.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"
#include "manager/base/message.h"
#include "manager/host/cpu_share.h"
#include "proto/config/model_config.h"

static int bad(const char *field, const char *member, struct error *err, const char *text)
{
    char name[ERROR_FIELD_BYTES];
    snprintf(name, sizeof(name), "%s.%s", field, member);
    return error_field(err, name, "%s", text);
}

int config_check(const char *field, const pb_config *config, struct error *err)
{
    char cpus_field[ERROR_FIELD_BYTES];
    if (!config)
        return 0;
    if (model_config_check(field, config, err) != 0)
        return err->status;
    snprintf(cpus_field, sizeof(cpus_field), "%s.cpus", field);
    return cpu_share_check(cpus_field, config->cpus, err);
}

int config_check_fits(const char *field, const pb_config *config, const pb_info *info,
                      struct error *err)
{
    char text[96];
    uint32_t most = info->context_length ? info->context_length : info->trained_context_length;
    if (!config || !config->has_context_length || !most || config->context_length <= most)
        return 0;
    snprintf(text, sizeof(text), "%u is more than the %u tokens that the model is served with",
             config->context_length, most);
    return bad(field, "context_length", err, text);
}

int config_check_devices(const char *field, const pb_config *config, const pb_group *group,
                         struct error *err)
{
    char text[128];
    if (!config || !group->n_devices || device_name_is_gpu(group->devices[0]))
        return 0;
    const struct load_setting *row = model_config_gpu_row(config);
    if (!row)
        return 0;
    bool of_word = row->kind == LOAD_WORD && row->gpu_value[0];
    snprintf(text, sizeof(text), "%s%sis only for GPUs; device group %.64s has none",
             of_word ? row->gpu_value : "", of_word ? " " : "", group->name);
    return bad(field, row->field, err, text);
}

bool config_equal(const pb_config *a, const pb_config *b)
{
    return model_config_equal(a, b);
}

pb_config *config_merge(const pb_config *under, const pb_config *over)
{
    pb_config merged = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    if (under)
        merged = *under;
    if (over)
        model_config_lay(&merged, over);
    return (pb_config *)message_copy(&merged.base); /* the texts were borrowed */
}

bool config_ignores_sampling(const pb_config *under, const pb_config *over)
{
    pb_config merged = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    if (under)
        merged = *under;
    if (over)
        model_config_lay(&merged, over);
    return strcmp(merged.default_sampling, "none") == 0;
}
