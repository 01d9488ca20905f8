#include "clients/cli/serve/restore_models.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "clients/cli/serve/announce.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { TRY_MS = 200 };

/* Counts the desired replicas of a version: loaded and not parked. */
static uint64_t count_wanted(const Sluice__Manager__V1__ModelVersion *version)
{
    uint64_t n = 0;
    for (size_t i = 0; i < version->n_deployments; i++)
        if (!version->deployments[i]->parked)
            n += version->deployments[i]->n_replicas;
    return n;
}

/* True if an operation on the version was requested at or after since_unix_ns. */
static bool was_requested_since(const Sluice__Manager__V1__ListOperationsResponse *list,
                                const Sluice__Manager__V1__ModelVersion *version,
                                int64_t since_unix_ns)
{
    for (size_t i = 0; i < list->n_operations; i++) {
        const Sluice__Manager__V1__Operation *o = list->operations[i];
        if (o->created_unix_ns >= since_unix_ns && strcmp(o->model, version->model) == 0 &&
            strcmp(o->version, version->version) == 0)
            return true;
    }
    return false;
}

/* Counts of a version's desired replicas that are not parked. */
struct tally {
    uint64_t n_failed_before;      /* failed under an earlier manager, announced already */
    uint64_t n_failed;             /* failed since, or wait without end */
    uint64_t n_others;             /* ready, or starting */
    char why[ERROR_MESSAGE_BYTES]; /* reason of the last of n_failed */
};

static bool is_wanted_on(const Sluice__Manager__V1__ModelVersion *version, const char *group)
{
    for (size_t i = 0; i < version->n_deployments; i++)
        if (strcmp(version->deployments[i]->device_group, group) == 0)
            return !version->deployments[i]->parked;
    return false;
}

static bool had_failed_before(const struct restore_models *back, const char *id)
{
    for (size_t i = 0; i < back->n_failed_before; i++)
        if (strcmp(back->failed_before[i], id) == 0)
            return true;
    return false;
}

static void count(struct tally *tally, const struct restore_models *back,
                  const Sluice__Manager__V1__Replica *replica)
{
    const char *why = replica->last_error ? replica->last_error->message : "";
    bool failed = replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_FAILED;
    bool held = replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING &&
                reason_is(replica->reason, REASON_DEVICE_QUARANTINED);
    if (failed && had_failed_before(back, replica->id)) {
        tally->n_failed_before++;
    } else if (failed || held) {
        tally->n_failed++;
        if (held)
            why = "the replica waits for a quarantined device; see sluice devices";
        if (*why)
            snprintf(tally->why, sizeof(tally->why), "%s", why);
    } else {
        tally->n_others++;
    }
}

/* Returns NULL if the manager does not answer. */
static ProtobufCMessage *list_replicas(struct cli *cli,
                                       const Sluice__Manager__V1__ModelVersion *version)
{
    Sluice__Manager__V1__ListReplicasRequest request =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    request.model = version->model;
    request.version = version->version;
    return cli_call(cli, "ListReplicas", &request.base, &message, &err) == 0 ? message : NULL;
}

static bool is_wanted(const Sluice__Manager__V1__ModelVersion *version,
                      const Sluice__Manager__V1__Replica *replica)
{
    return is_wanted_on(version, replica->device_group) && !replica->retiring &&
           replica->state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_STOPPED;
}

/* False if the manager does not answer. */
static bool count_replicas(struct cli *cli, const Sluice__Manager__V1__ModelVersion *version,
                           const struct restore_models *back, struct tally *out)
{
    ProtobufCMessage *message = list_replicas(cli, version);
    const Sluice__Manager__V1__ListReplicasResponse *list =
        (const Sluice__Manager__V1__ListReplicasResponse *)message;
    *out = (struct tally){.why = "its replicas failed"};
    for (size_t i = 0; list && i < list->n_replicas; i++)
        if (is_wanted(version, list->replicas[i]))
            count(out, back, list->replicas[i]);
    rpc_message_free(message);
    return list != NULL;
}

/* Announces replicas that failed under an earlier manager and are not restarted. `last` is one of
 * them. */
static void announce_skipped(const struct cli *cli,
                             const Sluice__Manager__V1__ModelVersion *version,
                             const Sluice__Manager__V1__Replica *last, uint64_t n_failed,
                             uint64_t n)
{
    char part[64] = "";
    bool has_error = last->last_error && last->last_error->message[0];
    const char *why = has_error ? last->last_error->message : "its process failed";
    if (n_failed < n)
        snprintf(part, sizeof(part), "%" PRIu64 " of %" PRIu64 " replicas of ", n_failed, n);
    announce(cli, "not_restored",
             json_pack("{s:s,s:s,s:s,s:I,s:I,s:s}", "model", version->model, "version",
                       version->version, "replica", last->id, "failed", (json_int_t)n_failed,
                       "replicas", (json_int_t)n, "message", why),
             "not loaded again: %s%s version %s, because it failed before; retry with sluice "
             "restart %s: %s",
             part, version->model, version->version, last->id, why);
}

/* Announces failed replicas of the n desired ones. Returns how many failed before since_unix_ns. */
static uint64_t tell_failed_before(struct cli *cli,
                                   const Sluice__Manager__V1__ModelVersion *version, uint64_t n,
                                   int64_t since_unix_ns, struct restore_models *back)
{
    ProtobufCMessage *message = list_replicas(cli, version);
    const Sluice__Manager__V1__ListReplicasResponse *list =
        (const Sluice__Manager__V1__ListReplicasResponse *)message;
    const Sluice__Manager__V1__Replica *last = NULL;
    uint64_t n_failed = 0;
    for (size_t i = 0; list && i < list->n_replicas && back->n_failed_before < RESTORE_MODELS_MAX;
         i++) {
        const Sluice__Manager__V1__Replica *replica = list->replicas[i];
        if (!is_wanted(version, replica) || replica->started_unix_ns >= since_unix_ns ||
            replica->state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_FAILED)
            continue;
        snprintf(back->failed_before[back->n_failed_before++], sizeof(back->failed_before[0]), "%s",
                 replica->id);
        last = replica;
        n_failed++;
    }
    if (last)
        announce_skipped(cli, version, last, n_failed, n);
    rpc_message_free(message);
    return n_failed < n ? n_failed : n;
}

/* Announces each version of the model that is restored. Returns their number. A version that failed
 * under the last manager stays failed and is not started. */
static size_t announce_versions(struct cli *cli, const Sluice__Manager__V1__Model *model,
                                const Sluice__Manager__V1__ListOperationsResponse *list,
                                int64_t since_unix_ns, struct restore_models *back)
{
    size_t n_back = 0;
    for (size_t i = 0; i < model->n_versions; i++) {
        uint64_t n = count_wanted(model->versions[i]);
        if (n == 0 || was_requested_since(list, model->versions[i], since_unix_ns))
            continue;
        n -= tell_failed_before(cli, model->versions[i], n, since_unix_ns, back);
        if (n == 0)
            continue;
        announce(cli, "restoring",
                 json_pack("{s:s,s:s,s:I}", "model", model->name, "version",
                           model->versions[i]->version, "replicas", (json_int_t)n),
                 "loading again: %s version %s, %" PRIu64 " replica%s", model->name,
                 model->versions[i]->version, n, n == 1 ? "" : "s");
        n_back++;
    }
    return n_back;
}

static void announce_page(struct cli *cli, const Sluice__Manager__V1__ListModelsResponse *page,
                          const Sluice__Manager__V1__ListOperationsResponse *list,
                          int64_t since_unix_ns, struct restore_models *out)
{
    size_t n_more = 0;
    for (size_t i = 0; i < page->n_models; i++) {
        if (out->n_models == RESTORE_MODELS_MAX)
            n_more++;
        else if (announce_versions(cli, page->models[i], list, since_unix_ns, out))
            snprintf(out->names[out->n_models++], sizeof(out->names[0]), "%s",
                     page->models[i]->name);
    }
    if (n_more || page->next_page_token[0])
        announce(cli, "more_models", NULL, "and more models; see `sluice ls`");
}

int restore_models_list(struct cli *cli, int64_t since_unix_ns, struct restore_models *out,
                        struct error *err)
{
    Sluice__Manager__V1__ListModelsRequest models = SLUICE__MANAGER__V1__LIST_MODELS_REQUEST__INIT;
    Sluice__Manager__V1__ListOperationsRequest operations =
        SLUICE__MANAGER__V1__LIST_OPERATIONS_REQUEST__INIT;
    ProtobufCMessage *page = NULL, *list = NULL;
    out->n_models = out->n_failed_before = 0;
    operations.page_size = 1000; /* the newest come first */
    /* List models before operations: then each load that the models show is among the operations.
     */
    int rc = cli_call(cli, "ListModels", &models.base, &page, err);
    if (!rc)
        rc = cli_call(cli, "ListOperations", &operations.base, &list, err);
    if (!rc) {
        printable_message(page);
        announce_page(cli, (const Sluice__Manager__V1__ListModelsResponse *)page,
                      (const Sluice__Manager__V1__ListOperationsResponse *)list, since_unix_ns,
                      out);
    }
    rpc_message_free(page);
    rpc_message_free(list);
    return rc;
}

/* True if a desired replica may still become ready, as far as the manager reports. */
static bool is_open(struct cli *cli, const Sluice__Manager__V1__ModelVersion *version,
                    const struct restore_models *back)
{
    struct tally tally;
    uint64_t n = count_wanted(version);
    if (!n ||
        version->state == SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_FAILED)
        return false;
    if (!count_replicas(cli, version, back, &tally))
        return true;
    return tally.n_others || tally.n_failed_before + tally.n_failed < n;
}

/* True if the wait is over: a version is ready, or all desired replicas have failed. */
static bool is_settled(struct cli *cli, const Sluice__Manager__V1__Model *model,
                       const struct restore_models *back, bool *ready)
{
    bool open = false;
    for (size_t i = 0; i < model->n_versions; i++)
        *ready |= count_wanted(model->versions[i]) && model->versions[i]->n_ready_replicas > 0;
    for (size_t i = 0; !*ready && !open && i < model->n_versions; i++)
        open = is_open(cli, model->versions[i], back);
    return !open;
}

static void announce_failures(struct cli *cli, const Sluice__Manager__V1__Model *model,
                              const struct restore_models *back)
{
    for (size_t i = 0; i < model->n_versions; i++) {
        struct tally tally;
        if (!count_wanted(model->versions[i]))
            continue;
        if (count_replicas(cli, model->versions[i], back, &tally) && tally.n_failed_before &&
            !tally.n_failed)
            continue;
        announce(cli, "restore_failed",
                 json_pack("{s:s,s:s,s:s}", "model", model->name, "version",
                           model->versions[i]->version, "message", tally.why),
                 "%s version %s was not restored: %s", model->name, model->versions[i]->version,
                 tally.why);
    }
}

int restore_models_wait(struct cli *cli, const struct restore_models *models, size_t i_model,
                        bool *ready, struct error *err)
{
    const struct timespec pause = {.tv_nsec = TRY_MS * NS_PER_MS};
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    request.model = (char *)(uintptr_t)models->names[i_model];
    *ready = false;
    for (bool settled = false; !settled && !cli->ending;) {
        ProtobufCMessage *message = NULL;
        int rc = cli_call(cli, "GetModel", &request.base, &message, err);
        if (rc == STATUS_NOT_FOUND) /* another client has removed the model */
            return 0;
        if (rc)
            return rc;
        printable_message(message);
        const Sluice__Manager__V1__Model *model =
            ((const Sluice__Manager__V1__GetModelResponse *)message)->model;
        settled = !model || is_settled(cli, model, models, ready);
        if (settled && model && !*ready)
            announce_failures(cli, model, models);
        rpc_message_free(message);
        if (!settled)
            nanosleep(&pause, NULL);
    }
    return 0;
}
