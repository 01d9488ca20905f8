#include "clients/cli/comeback.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "clients/cli/cli.h"
#include "clients/cli/printable.h"
#include "proto/rpc/rpc_message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { TRY_MS = 200 };

/* Replicas that somebody asked for and has not parked. */
static uint64_t wanted(const Sluice__Manager__V1__ModelVersion *version)
{
    uint64_t n = 0;
    for (size_t i = 0; i < version->n_deployments; i++)
        if (!version->deployments[i]->parked)
            n += version->deployments[i]->n_replicas;
    return n;
}

/* An operation of the version was asked for since then. */
static bool is_asked_since(const Sluice__Manager__V1__ListOperationsResponse *list,
                           const Sluice__Manager__V1__ModelVersion *version, int64_t since_unix_ns)
{
    for (size_t i = 0; i < list->n_operations; i++) {
        const Sluice__Manager__V1__Operation *o = list->operations[i];
        if (o->created_unix_ns >= since_unix_ns && strcmp(o->model, version->model) == 0 &&
            strcmp(o->version, version->version) == 0)
            return true;
    }
    return false;
}

/* What its replicas have failed of, where all of them had before `before_unix_ns` (INT64_MAX: at
 * any time): false where one is tried since. *out_id: a replica; "" where there is none. */
static bool why_failed(struct cli *cli, const Sluice__Manager__V1__ModelVersion *version,
                       int64_t before_unix_ns, char out[ERROR_MESSAGE_BYTES], char out_id[64])
{
    Sluice__Manager__V1__ListReplicasRequest request =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    bool all = true;
    snprintf(out, ERROR_MESSAGE_BYTES, "its replicas failed");
    out_id[0] = '\0';
    request.model = version->model;
    request.version = version->version;
    if (cli_call(cli, "ListReplicas", &request.base, &message, &err) != 0)
        return before_unix_ns == INT64_MAX;
    const Sluice__Manager__V1__ListReplicasResponse *list =
        (const Sluice__Manager__V1__ListReplicasResponse *)message;
    for (size_t i = 0; i < list->n_replicas; i++) {
        const Sluice__Manager__V1__Replica *replica = list->replicas[i];
        bool failed = replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_FAILED;
        all = all && failed && replica->started_unix_ns < before_unix_ns;
        if (!replica->last_error || !replica->last_error->message[0])
            continue;
        snprintf(out, ERROR_MESSAGE_BYTES, "%s", replica->last_error->message);
        snprintf(out_id, 64, "%s", replica->id);
    }
    rpc_message_free(message);
    return before_unix_ns == INT64_MAX || (all && out_id[0]);
}

static bool tell_failed_before(struct cli *cli, const Sluice__Manager__V1__ModelVersion *version,
                               int64_t since_unix_ns)
{
    char words[ERROR_MESSAGE_BYTES], id[64];
    if (version->state != SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_FAILED ||
        !why_failed(cli, version, since_unix_ns, words, id))
        return false;
    fprintf(stderr,
            "not loaded again: %s version %s, which had failed (sluice restart %s tries it): ",
            version->model, version->version, id);
    printable_write(stderr, words);
    fputc('\n', stderr);
    return true;
}

/* How many versions of the model come back; a line for each on stderr. One that failed under the
 * manager before this one stays as it was, and is not started. */
static size_t tell_versions(struct cli *cli, const Sluice__Manager__V1__Model *model,
                            const Sluice__Manager__V1__ListOperationsResponse *list,
                            int64_t since_unix_ns)
{
    size_t n_back = 0;
    for (size_t i = 0; i < model->n_versions; i++) {
        uint64_t n = wanted(model->versions[i]);
        if (n == 0 || is_asked_since(list, model->versions[i], since_unix_ns) ||
            tell_failed_before(cli, model->versions[i], since_unix_ns))
            continue;
        fprintf(stderr, "loading again: %s version %s, %" PRIu64 " replica%s\n", model->name,
                model->versions[i]->version, n, n == 1 ? "" : "s");
        n_back++;
    }
    return n_back;
}

static void tell_page(struct cli *cli, const Sluice__Manager__V1__ListModelsResponse *page,
                      const Sluice__Manager__V1__ListOperationsResponse *list,
                      int64_t since_unix_ns, struct comeback *out)
{
    size_t n_more = 0;
    for (size_t i = 0; i < page->n_models; i++) {
        if (out->n_models == COMEBACK_MODELS)
            n_more++;
        else if (tell_versions(cli, page->models[i], list, since_unix_ns))
            snprintf(out->names[out->n_models++], sizeof(out->names[0]), "%s",
                     page->models[i]->name);
    }
    if (n_more || page->next_page_token[0])
        fprintf(stderr, "and what `sluice ls` shows after these\n");
}

int comeback_tell(struct cli *cli, int64_t since_unix_ns, struct comeback *out, struct error *err)
{
    Sluice__Manager__V1__ListModelsRequest models = SLUICE__MANAGER__V1__LIST_MODELS_REQUEST__INIT;
    Sluice__Manager__V1__ListOperationsRequest operations =
        SLUICE__MANAGER__V1__LIST_OPERATIONS_REQUEST__INIT;
    ProtobufCMessage *page = NULL, *list = NULL;
    out->n_models = 0;
    operations.page_size = 1000; /* the newest come first */
    /* In this order each load that the models show is among the operations. */
    int rc = cli_call(cli, "ListModels", &models.base, &page, err);
    if (!rc)
        rc = cli_call(cli, "ListOperations", &operations.base, &list, err);
    if (!rc) {
        printable_message(page);
        tell_page(cli, (const Sluice__Manager__V1__ListModelsResponse *)page,
                  (const Sluice__Manager__V1__ListOperationsResponse *)list, since_unix_ns, out);
    }
    rpc_message_free(page);
    rpc_message_free(list);
    return rc;
}

/* True when there is no more to wait for: a version is ready, or each that is wanted has failed. */
static bool is_settled(const Sluice__Manager__V1__Model *model, bool *ready)
{
    size_t n_open = 0;
    for (size_t i = 0; i < model->n_versions; i++) {
        const Sluice__Manager__V1__ModelVersion *v = model->versions[i];
        *ready |= wanted(v) && v->n_ready_replicas > 0;
        n_open += wanted(v) &&
                  v->state != SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_FAILED;
    }
    return *ready || n_open == 0;
}

static void tell_failures(struct cli *cli, const Sluice__Manager__V1__Model *model)
{
    for (size_t i = 0; i < model->n_versions; i++) {
        char words[ERROR_MESSAGE_BYTES], id[64];
        if (!wanted(model->versions[i]))
            continue;
        (void)why_failed(cli, model->versions[i], INT64_MAX, words, id);
        fprintf(stderr, "%s version %s does not come back: ", model->name,
                model->versions[i]->version);
        printable_write(stderr, words);
        fputc('\n', stderr);
    }
}

int comeback_wait(struct cli *cli, const char *name, bool *ready, struct error *err)
{
    const struct timespec pause = {.tv_nsec = TRY_MS * NS_PER_MS};
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    request.model = (char *)(uintptr_t)name;
    *ready = false;
    for (bool settled = false; !settled && !cli->ending;) {
        ProtobufCMessage *message = NULL;
        int rc = cli_call(cli, "GetModel", &request.base, &message, err);
        if (rc == STATUS_NOT_FOUND) /* somebody has removed it */
            return 0;
        if (rc)
            return rc;
        printable_message(message);
        const Sluice__Manager__V1__Model *model =
            ((const Sluice__Manager__V1__GetModelResponse *)message)->model;
        settled = !model || is_settled(model, ready);
        if (settled && model && !*ready)
            tell_failures(cli, model);
        rpc_message_free(message);
        if (!settled)
            nanosleep(&pause, NULL);
    }
    return 0;
}
