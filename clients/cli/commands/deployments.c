#include "clients/cli/commands/deployments.h"

#include <inttypes.h>
#include <string.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/message/message.h"

typedef Sluice__Manager__V1__Model model_message;
typedef Sluice__Manager__V1__ModelVersion version_message;

Sluice__Manager__V1__GetModelResponse *deployments_read(struct cli *cli, const char *model)
{
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error ignored;
    request.model = (char *)(uintptr_t)model;
    if (cli_call(cli, "GetModel", &request.base, &message, &ignored) != 0) {
        rpc_message_free(message);
        return NULL;
    }
    printable_message(message);
    return (Sluice__Manager__V1__GetModelResponse *)message;
}

/* Finds a version; "" is the version registered last. */
static const version_message *find_version(const model_message *model, const char *version)
{
    if (!version[0])
        return model->n_versions ? model->versions[model->n_versions - 1] : NULL;
    for (size_t i = 0; i < model->n_versions; i++)
        if (strcmp(model->versions[i]->version, version) == 0)
            return model->versions[i];
    return NULL;
}

static const version_message *newest_ready(const model_message *model)
{
    const version_message *newest = NULL;
    if (model->traffic && model->traffic->n_weights)
        return NULL;
    for (size_t i = 0; i < model->n_versions; i++)
        if (model->versions[i]->n_ready_replicas &&
            (!newest || model->versions[i]->sequence > newest->sequence))
            newest = model->versions[i];
    return newest;
}

const char *deployments_default(const model_message *model)
{
    const version_message *newest = newest_ready(model);
    return newest ? newest->version : NULL;
}

void deployments_print_default(FILE *out, const model_message *model, const char *version, bool now)
{
    const version_message *loaded = find_version(model, version), *before = newest_ready(model);
    if (!loaded || !before || loaded->sequence <= before->sequence)
        return;
    fprintf(out,
            "requests for %s without a version %s to %s (%s: %s); keep with: sluice traffic %s "
            "%s=100\n",
            model->name, now ? "now go" : "will go", loaded->version, now ? "before" : "now",
            before->version, model->name, before->version);
}

void deployments_print_others(FILE *out, const model_message *model, const char *version,
                              const char *group)
{
    const version_message *loaded = find_version(model, version);
    bool any = false;
    for (size_t i = 0; loaded && i < loaded->n_deployments; i++) {
        const char *other = loaded->deployments[i]->device_group;
        if (strcmp(other, group[0] ? group : "cpu") == 0)
            continue;
        if (any)
            fprintf(out, ", %s", other);
        else
            fprintf(out, "%s %s is also loaded on %s", model->name, loaded->version, other);
        any = true;
    }
    if (any)
        fputc('\n', out);
}

void deployments_print(FILE *out, const model_message *model, const char *version,
                       const char *group, const char *lead)
{
    for (size_t i = 0; i < model->n_versions; i++) {
        const version_message *v = model->versions[i];
        if (version[0] && strcmp(version, v->version) != 0)
            continue;
        for (size_t k = 0; k < v->n_deployments; k++) {
            const Sluice__Manager__V1__Deployment *d = v->deployments[k];
            if (group[0] && strcmp(group, d->device_group) != 0)
                continue;
            fprintf(out, "%sversion %s on %s: %" PRIu32 " replica%s%s\n", lead, v->version,
                    d->device_group, d->n_replicas, d->n_replicas == 1 ? "" : "s",
                    d->parked ? ", parked" : "");
        }
    }
}
