/* models.c: RegisterModelVersion, GetModel, ListModels, DeleteModelVersion. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/host/model_path.h"
#include "manager/host/tool.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/traffic.h"
#include "manager/service/service.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__RegisterModelVersionRequest register_request;
typedef Sluice__Manager__V1__RegisterModelVersionResponse register_response;
typedef Sluice__Manager__V1__DeleteModelVersionRequest delete_request;
typedef Sluice__Manager__V1__DeleteModelVersionResponse delete_response;

enum {
    MAX_LABELS = 64,
    LABEL_MAX_BYTES = 256,
    MAX_VERSIONS = 1000,
    MAX_MODELS = 10000,
    DIGEST_DIGITS = 64
};

/* --- RegisterModelVersion --- */

/* The data read from the file, on its way into the store. */
struct registration {
    struct service *service;
    struct rpc_call *call; /* a reference while the inspection runs */
    const register_request *request;
    struct model_path path;
    pb_config *config;                     /* configuration of the request as recorded; owned */
    pb_info *info;                         /* owned */
    char content_sha256[SHA256_HEX_BYTES]; /* only with verify, else empty */
    uint64_t size_bytes;
};

static void free_registration(void *arg)
{
    struct registration *registration = arg;
    if (!registration)
        return;
    if (registration->info)
        message_free(&registration->info->base);
    if (registration->config)
        message_free(&registration->config->base);
    free(registration);
}

static bool is_digest(const char *text)
{
    return strlen(text) == DIGEST_DIGITS && strspn(text, "0123456789abcdef") == DIGEST_DIGITS;
}

static int check_register(const register_request *request, struct error *err)
{
    if (service_check_names(request->request_id, request->model, request->version, "", err) != 0)
        return err->status;
    if (!*request->path)
        return error_field(err, "path", "is required");
    if (strlen(request->path) >= PATH_MAX)
        return error_field(err, "path", "%zu bytes; %d is the limit", strlen(request->path),
                           PATH_MAX - 1);
    if (*request->expected_digest && !is_digest(request->expected_digest))
        return error_field(err, "expected_digest", "is not %d lower-case hexadecimal digits",
                           DIGEST_DIGITS);
    if (request->n_labels > MAX_LABELS)
        return error_field(err, "labels", "%zu of them; %d is the limit", request->n_labels,
                           MAX_LABELS);
    for (size_t i = 0; i < request->n_labels; i++)
        if (!*request->labels[i]->key || strlen(request->labels[i]->key) > LABEL_MAX_BYTES ||
            strlen(request->labels[i]->value) > LABEL_MAX_BYTES)
            return error_field(err, "labels", "a key must have 1 to %d bytes, a value at most %d",
                               LABEL_MAX_BYTES, LABEL_MAX_BYTES);
    return config_check("config", request->config, err);
}

/* The version with this file and these settings. With an empty name, only the latest registered
 * version is compared. */
static const pb_version *find_same(const struct catalog *catalog,
                                   const struct registration *registration)
{
    const register_request *request = registration->request;
    const pb_version *row = catalog_resolve_version(catalog, request->model, request->version);
    if (!row || strcmp(row->path, registration->path.recorded) != 0 || !row->info ||
        strcmp(row->info->weights_digest, registration->info->weights_digest) != 0)
        return NULL;
    return config_equal(row->config, registration->config) ? row : NULL;
}

static int choose_version(const struct catalog *catalog, const char *model, char out_version[48],
                          struct error *err)
{
    uint64_t highest = 0;
    size_t n = 0;
    for (size_t i = catalog_first_version(catalog, model);; i++, n++) {
        const pb_version *row = catalog_version_at(catalog, i);
        char *end;
        if (!row || strcmp(row->model, model) != 0)
            break;
        unsigned long long number = strtoull(row->version, &end, 10);
        if (*end == '\0' && strlen(row->version) <= 15 && number > highest)
            highest = number;
    }
    if (n >= MAX_VERSIONS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "model %s has %zu versions: that is the limit; delete one first", model,
                         n);
    snprintf(out_version, 48, "%" PRIu64, highest + 1);
    return 0;
}

static int put_model(struct txn *txn, const char *name, struct error *err)
{
    const pb_model *row = catalog_model(txn_catalog(txn), name);
    if (!row && catalog_count(txn_catalog(txn), TABLE_MODEL) >= MAX_MODELS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "%d models are registered: that is the limit; delete one first",
                         MAX_MODELS);
    pb_model *model = row ? MESSAGE_COPY(pb_model, row)
                          : MESSAGE_NEW(pb_model, sluice__manager__v1__model__descriptor);
    if (!model || (!row && !message_set(&model->name, name))) {
        if (model)
            message_free(&model->base);
        return error_no_memory(err);
    }
    if (!row)
        model->created_unix_ns = txn_now_unix_ns(txn);
    model->generation++;
    return txn_put(txn, TABLE_MODEL, &model->base, err);
}

static int put_version(struct txn *txn, const struct registration *registration,
                       const char *version_name, struct error *err)
{
    const register_request *request = registration->request;
    uint64_t sequence = 0;
    if (txn_next(txn, "version_sequence", &sequence, err) != 0)
        return err->status;
    pb_version *version = MESSAGE_NEW(pb_version, sluice__manager__v1__model_version__descriptor);
    if (!version)
        return error_no_memory(err);
    bool complete = message_set(&version->model, request->model) &&
                    message_set(&version->version, version_name) &&
                    message_set(&version->path, registration->path.recorded) &&
                    message_set(&version->content_sha256, registration->content_sha256) &&
                    message_set_copy(&version->info, registration->info) &&
                    message_set_copy(&version->config, registration->config);
    version->generation = 1;
    version->sequence = sequence;
    version->size_bytes = registration->size_bytes;
    version->created_unix_ns = txn_now_unix_ns(txn);
    for (size_t i = 0; complete && i < request->n_labels; i++)
        complete = message_append_copy(&version->n_labels, &version->labels, request->labels[i]);
    if (!complete) {
        message_free(&version->base);
        return error_no_memory(err);
    }
    return txn_put(txn, TABLE_MODEL_VERSION, &version->base, err);
}

/* Compares the content hash of an existing version, or records the hash where the row has none. */
static int verify_version(struct txn *txn, const struct registration *registration,
                          const pb_version *row, struct error *err)
{
    const char *seen = registration->content_sha256;
    if (!*seen || strcmp(row->content_sha256, seen) == 0)
        return 0;
    if (*row->content_sha256) {
        error_set(
            err, STATUS_FAILED_PRECONDITION,
            "path: the contents of %s/%s have changed: SHA-256 %.16s..., recorded is %.16s...",
            row->model, row->version, seen, row->content_sha256);
        return error_reason(err, REASON_CONTENT_CHANGED);
    }
    pb_version *version = MESSAGE_COPY(pb_version, row);
    if (!version || !message_set(&version->content_sha256, seen)) {
        if (version)
            message_free(&version->base);
        return error_no_memory(err);
    }
    version->generation++;
    struct txn_event event = {.type = "model.verified",
                              .model = registration->request->model,
                              .version = row->version,
                              .message = seen};
    if (txn_event(txn, &event, err) != 0) {
        message_free(&version->base);
        return err->status;
    }
    if (txn_put(txn, TABLE_MODEL_VERSION, &version->base, err) != 0)
        return err->status;
    return put_model(txn, registration->request->model, err);
}

static int answer_register(const struct catalog *catalog, const char *model, const char *version,
                           bool existed, ProtobufCMessage *message, struct error *err)
{
    register_response *response = (register_response *)message;
    response->existed = existed;
    response->version = build_version(catalog, catalog_version(catalog, model, version));
    return response->version ? 0 : error_no_memory(err);
}

static int apply_register(struct txn *txn, const ProtobufCMessage *message, void *arg,
                          ProtobufCMessage *response, struct error *err)
{
    const struct registration *registration = arg;
    const register_request *request = (const register_request *)message;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_model *model = catalog_model(catalog, request->model);
    char version[48];
    if (lifecycle_check_generation(request->model, request->has_expected_generation,
                                   request->expected_generation, model ? model->generation : 0,
                                   err) != 0)
        return err->status;
    const pb_version *same = find_same(catalog, registration);
    if (same) {
        snprintf(version, sizeof(version), "%s", same->version);
        if (verify_version(txn, registration, same, err) != 0)
            return err->status;
        return answer_register(catalog, request->model, version, true, response, err);
    }
    if (*request->version && catalog_version(catalog, request->model, request->version)) {
        error_set(err, STATUS_ALREADY_EXISTS,
                  "version: %s/%s is registered with another file or configuration", request->model,
                  request->version);
        return error_reason(err, REASON_VERSION_EXISTS);
    }
    if (choose_version(catalog, request->model, version, err) != 0)
        return err->status;
    if (*request->version)
        snprintf(version, sizeof(version), "%s", request->version);
    struct txn_event event = {.type = "model.registered",
                              .model = request->model,
                              .version = version,
                              .message = registration->info->weights_digest};
    failpoint("register.before_write");
    if (put_model(txn, request->model, err) != 0 ||
        put_version(txn, registration, version, err) != 0 || txn_event(txn, &event, err) != 0)
        return err->status;
    failpoint("register.before_commit");
    return answer_register(txn_catalog(txn), request->model, version, false, response, err);
}

static const struct service_change register_change = {.apply = apply_register,
                                                      .free_arg = free_registration};

static int check_report(const struct registration *registration,
                        const Sluice__Worker__V1__InspectReport *report, struct error *err)
{
    const register_request *request = registration->request;
    if (!report->info || strlen(report->info->weights_digest) != 64)
        return error_set(err, STATUS_INTERNAL, "the inspecting process sent no digest");
    if (*report->unsupported_reason) {
        error_set(err, STATUS_FAILED_PRECONDITION, "%.400s", report->unsupported_reason);
        return error_reason(err, REASON_MODEL_UNSUPPORTED);
    }
    if (*request->expected_digest &&
        strcmp(request->expected_digest, report->info->weights_digest) != 0) {
        error_set(err, STATUS_FAILED_PRECONDITION, "expected_digest: the file has digest %s",
                  report->info->weights_digest);
        return error_reason(err, REASON_DIGEST_MISMATCH);
    }
    return config_check_fits("config", request->config, report->info, err);
}

/* The hash of the contents. A single file has its SHA-256. Several files have the SHA-256 of the
 * lines that sha256sum prints for them, in the order of the report. */
static int hash_contents(const Sluice__Worker__V1__InspectReport *report,
                         char out_hex[SHA256_HEX_BYTES], struct error *err)
{
    struct sha256 *sha = NULL;
    uint8_t digest[SHA256_BYTES];
    if (report->n_files == 1) {
        snprintf(out_hex, SHA256_HEX_BYTES, "%s", report->files[0]->sha256);
        return 0;
    }
    if (sha256_create(&sha, err) != 0)
        return err->status;
    for (size_t i = 0; i < report->n_files; i++) {
        const Sluice__Worker__V1__ModelFile *file = report->files[i];
        sha256_update(sha, file->sha256, strlen(file->sha256));
        sha256_update(sha, "  ", 2);
        sha256_update(sha, file->name, strlen(file->name));
        sha256_update(sha, "\n", 1);
    }
    sha256_final(sha, digest);
    sha256_hex(digest, out_hex);
    return 0;
}

static void on_inspected(void *arg, const pb_tool *report, const struct error *status)
{
    struct registration *registration = arg;
    struct service *service = registration->service;
    struct rpc_call *call = registration->call;
    const register_request *request = registration->request;
    struct error err = *status;
    if (err.status == 0 &&
        (!report || report->result_case != SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT))
        error_set(&err, STATUS_INTERNAL, "the inspecting process sent a report of another kind");
    if (err.status == STATUS_INVALID_ARGUMENT && !err.reason)
        error_reason(&err, REASON_MODEL_FILE_INVALID);
    if (err.status == 0)
        check_report(registration, report->inspect, &err);
    if (err.status == 0 && request->verify)
        hash_contents(report->inspect, registration->content_sha256, &err);
    if (err.status == 0 && !(registration->info = MESSAGE_COPY(pb_info, report->inspect->info)))
        error_no_memory(&err);
    if (err.status == 0) {
        for (size_t i = 0; i < report->inspect->n_files; i++)
            registration->size_bytes += report->inspect->files[i]->size_bytes;
        service_change(service, call, &request->base, &register_change, registration);
    } else {
        service_fail(call, &err);
        free_registration(registration);
    }
    rpc_call_release(call);
}

/* Not answered before: read the file. */
static void inspect(struct service *service, struct rpc_call *call, const ProtobufCMessage *message,
                    void *arg)
{
    struct registration *registration = arg;
    struct error err;
    const char *arguments[] = {"inspect", "--model", registration->path.absolute,
                               registration->request->verify ? "--verify" : NULL, NULL};
    (void)message;
    rpc_call_retain(call);
    const register_request *request = registration->request;
    if (model_path_find(service->fleet->context->settings->model_root, "path", request->path,
                        &registration->path, &err) == 0 &&
        model_path_of_config(service->fleet->context->settings->model_root, request->config,
                             &registration->config, &err) == 0 &&
        tool_run(service->fleet->tools, arguments, NULL, on_inspected, registration, &err) == 0)
        return;
    service_fail(call, &err);
    rpc_call_release(call);
    free_registration(registration);
}

void service_register(struct service *service, struct rpc_call *call,
                      const ProtobufCMessage *message)
{
    const register_request *request = (const register_request *)message;
    struct error err;
    struct registration *registration = calloc(1, sizeof(*registration));
    if (!registration) {
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    registration->service = service;
    registration->call = call;
    registration->request = request;
    if (check_register(request, &err) != 0) {
        service_fail(call, &err);
        free_registration(registration);
        return;
    }
    service_once(service, call, message, &register_change, registration, inspect);
}

/* --- GetModel, ListModels --- */

static int no_model(const char *name, struct error *err)
{
    error_set(err, STATUS_NOT_FOUND, "model: no model \"%.64s\"", name);
    return error_reason(err, REASON_MODEL_NOT_FOUND);
}

int service_get_model(struct service *service, const ProtobufCMessage *message,
                      ProtobufCMessage *message_out, struct error *err)
{
    const char *name = ((const Sluice__Manager__V1__GetModelRequest *)message)->model;
    Sluice__Manager__V1__GetModelResponse *response =
        (Sluice__Manager__V1__GetModelResponse *)message_out;
    const struct catalog *catalog = service->fleet->context->catalog;
    if (name_check("model", name, err) != 0)
        return err->status;
    const pb_model *row = catalog_model(catalog, name);
    if (!row)
        return no_model(name, err);
    response->model = build_model(catalog, row);
    return response->model ? 0 : error_no_memory(err);
}

int service_list_models(struct service *service, const ProtobufCMessage *message,
                        ProtobufCMessage *message_out, struct error *err)
{
    enum { PAGE = 1000, PAGE_BYTES = 2 << 20 }; /* clients take messages of 4 MiB */
    const Sluice__Manager__V1__ListModelsRequest *request =
        (const Sluice__Manager__V1__ListModelsRequest *)message;
    Sluice__Manager__V1__ListModelsResponse *response =
        (Sluice__Manager__V1__ListModelsResponse *)message_out;
    const struct catalog *catalog = service->fleet->context->catalog;
    size_t first = 0, n_page = request->page_size ? request->page_size : PAGE;
    if (n_page > PAGE)
        return error_field(err, "page_size", "%zu; %d is the limit", n_page, PAGE);
    if (*request->page_token) {
        if (name_check("page_token", request->page_token, err) != 0)
            return err->status;
        first = catalog_find(catalog, TABLE_MODEL, request->page_token);
        const pb_model *row = catalog_model_at(catalog, first);
        first += row && strcmp(row->name, request->page_token) == 0;
    }
    size_t i = first, n_bytes = 0;
    for (; i < first + n_page && n_bytes < PAGE_BYTES && catalog_model_at(catalog, i); i++) {
        pb_model *model = build_model(catalog, catalog_model_at(catalog, i));
        if (!model || !message_append(&response->n_models, &response->models, model)) {
            if (model)
                message_free(&model->base);
            return error_no_memory(err);
        }
        n_bytes += protobuf_c_message_get_packed_size(&model->base);
    }
    if (catalog_model_at(catalog, i) &&
        !message_set(&response->next_page_token, catalog_model_at(catalog, i - 1)->name))
        return error_no_memory(err);
    response->generation = catalog->generation;
    return 0;
}

/* --- DeleteModelVersion --- */

/* Deletes the rows of stopped replicas. FAILED_PRECONDITION while a replica runs. */
static int delete_replicas(struct txn *txn, const pb_version *version, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    for (size_t i = 0; catalog_replica_at(catalog, i);) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if (strcmp(replica->model, version->model) != 0 ||
            strcmp(replica->version, version->version) != 0) {
            i++;
            continue;
        }
        if (txn_delete(txn, TABLE_REPLICA, replica->id, err) != 0)
            return err->status;
    }
    return 0;
}

static int check_unloaded(const struct catalog *catalog, const pb_version *version,
                          struct error *err)
{
    bool loaded = false;
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++)
        loaded |= strcmp(catalog_deployment_at(catalog, i)->model, version->model) == 0 &&
                  strcmp(catalog_deployment_at(catalog, i)->version, version->version) == 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++)
        loaded |= strcmp(catalog_replica_at(catalog, i)->model, version->model) == 0 &&
                  strcmp(catalog_replica_at(catalog, i)->version, version->version) == 0 &&
                  (int)catalog_replica_at(catalog, i)->state != REPLICA_STOPPED;
    if (!loaded)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "version: %s/%s is loaded; unload it first",
              version->model, version->version);
    return error_reason(err, REASON_VERSION_LOADED);
}

static int apply_delete(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    const delete_request *request = (const delete_request *)message;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_version *version = catalog_version(catalog, request->model, request->version);
    char key[TABLE_KEY_BYTES];
    (void)arg;
    if (!version) {
        error_set(err, STATUS_NOT_FOUND, "version: no version \"%.64s/%.32s\"", request->model,
                  request->version);
        return error_reason(err, REASON_VERSION_NOT_FOUND);
    }
    struct txn_event event = {
        .type = "model.deleted", .model = request->model, .version = request->version};
    /* No operation may be open, because it would write the version's rows and the model's traffic
     * again. */
    const struct lifecycle_target target = {request->model, request->version, NULL};
    table_key(key, request->model, request->version, NULL);
    if (lifecycle_check_generation(key, request->has_expected_generation,
                                   request->expected_generation, version->generation, err) != 0 ||
        check_unloaded(catalog, version, err) != 0 ||
        lifecycle_check_no_operation(catalog, &target, err) != 0 ||
        delete_replicas(txn, version, err) != 0 ||
        traffic_forget(txn, request->model, request->version, err) != 0 ||
        txn_delete(txn, TABLE_MODEL_VERSION, key, err) != 0 || txn_event(txn, &event, err) != 0)
        return err->status;
    bool gone = !catalog_resolve_version(catalog, request->model, "");
    int rc = gone ? txn_delete(txn, TABLE_TRAFFIC, request->model, err)
                  : lifecycle_bump_model(txn, request->model, err);
    if (rc == 0 && gone)
        rc = txn_delete(txn, TABLE_MODEL, request->model, err);
    ((delete_response *)response)->model_deleted = gone;
    return rc;
}

static int check_delete(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, void *arg, struct error *err)
{
    const delete_request *request = (const delete_request *)message;
    (void)service;
    (void)call;
    (void)arg;
    if (name_check("model", request->model, err) != 0)
        return err->status;
    return name_check_version("version", request->version, err);
}

const struct service_change service_delete_version = {.check = check_delete, .apply = apply_delete};
