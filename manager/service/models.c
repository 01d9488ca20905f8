/* models.c: RegisterModelVersion, GetModel, ListModels, DeleteModelVersion. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/host/model_path.h"
#include "manager/host/tool.h"
#include "manager/rollout/traffic.h"
#include "manager/service/service.h"
#include "manager/settings/config.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"

typedef Sluice__Manager__V1__RegisterModelVersionRequest register_request;
typedef Sluice__Manager__V1__RegisterModelVersionResponse register_response;

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
    struct model_path path;
    pb_config *config; /* configuration of the request as recorded */
    pb_info *info;
    char content_sha256[SHA256_HEX_BYTES]; /* only with verify, else empty */
    uint64_t size_bytes;
};

static bool is_digest(const char *text)
{
    return strlen(text) == DIGEST_DIGITS && strspn(text, "0123456789abcdef") == DIGEST_DIGITS;
}

static int check_register(struct service_call *call, struct error *err)
{
    const register_request *request = call->request;
    call->prepares = true;
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
static const pb_version *find_same(const struct catalog *catalog, const register_request *request,
                                   const struct registration *registration)
{
    const pb_version *row = catalog_resolve_version(catalog, request->model, request->version);
    if (!row || strcmp(row->path, registration->path.recorded) != 0 || !row->info ||
        strcmp(row->info->weights_digest, registration->info->weights_digest) != 0)
        return NULL;
    return config_equal(row->config, registration->config) ? row : NULL;
}

/* The next free number; NULL with err set. */
static char *choose_version(struct arena *arena, const struct catalog *catalog, const char *model,
                            struct error *err)
{
    uint64_t highest = 0;
    size_t n = 0;
    const pb_version *row;
    for (size_t i = catalog_first_version(catalog, model);
         (row = catalog_version_at(catalog, i)) && strcmp(row->model, model) == 0; i++, n++) {
        char *end;
        unsigned long long number = strtoull(row->version, &end, 10);
        if (*end == '\0' && strlen(row->version) <= 15 && number > highest)
            highest = number;
    }
    if (n < MAX_VERSIONS)
        return message_printf_in(arena, "%" PRIu64, highest + 1);
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "model %s has %zu versions: that is the limit; delete one first", model, n);
    return NULL;
}

static int put_model(struct txn *txn, char *name, struct error *err)
{
    const pb_model *row = catalog_model(txn_catalog(txn), name);
    pb_model model = SLUICE__MANAGER__V1__MODEL__INIT;
    if (!row && catalog_count(txn_catalog(txn), TABLE_MODEL) >= MAX_MODELS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "%d models are registered: that is the limit; delete one first",
                         MAX_MODELS);
    model.name = name;
    model.created_unix_ns = txn_now_unix_ns(txn);
    if (row)
        model = *row;
    model.generation++;
    return txn_put_copy(txn, TABLE_MODEL, &model, err);
}

static int put_version(struct txn *txn, struct service_call *call, char *name, struct error *err)
{
    const register_request *request = call->request;
    struct registration *registration = call->arg;
    pb_version version = SLUICE__MANAGER__V1__MODEL_VERSION__INIT;
    if (txn_next(txn, "version_sequence", &version.sequence, err) != 0)
        return err->status;
    version.model = request->model;
    version.version = name;
    version.path = message_text_in(&call->arena, registration->path.recorded);
    version.content_sha256 = registration->content_sha256;
    version.info = registration->info;
    version.config = registration->config;
    version.generation = 1;
    version.size_bytes = registration->size_bytes;
    version.created_unix_ns = txn_now_unix_ns(txn);
    version.n_labels = request->n_labels;
    /* The entries of both maps have the same fields. */
    version.labels = (Sluice__Manager__V1__ModelVersion__LabelsEntry **)(void *)request->labels;
    return txn_put_copy(txn, TABLE_MODEL_VERSION, &version, err);
}

/* Compares the content hash of an existing version, or records the hash where the row has none. */
static int verify_version(struct txn *txn, const register_request *request,
                          struct registration *registration, const pb_version *row,
                          struct error *err)
{
    char *seen = registration->content_sha256;
    if (!*seen || strcmp(row->content_sha256, seen) == 0)
        return 0;
    if (*row->content_sha256) {
        error_set(
            err, STATUS_FAILED_PRECONDITION,
            "path: the contents of %s/%s have changed: SHA-256 %.16s..., recorded is %.16s...",
            row->model, row->version, seen, row->content_sha256);
        return error_reason(err, REASON_CONTENT_CHANGED);
    }
    pb_version version = *row;
    version.content_sha256 = seen;
    version.generation++;
    struct txn_event event = {.type = "model.verified",
                              .model = request->model,
                              .version = row->version,
                              .message = seen};
    if (txn_event(txn, &event, err) != 0 ||
        txn_put_copy(txn, TABLE_MODEL_VERSION, &version, err) != 0)
        return err->status;
    return put_model(txn, request->model, err);
}

static int apply_register(struct txn *txn, struct service_call *call, struct error *err)
{
    const register_request *request = call->request;
    register_response *response = call->response;
    struct registration *registration = call->arg;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_model *model = catalog_model(catalog, request->model);
    if (service_check_generation(call, request->model, model ? model->generation : 0, err) != 0)
        return err->status;
    const pb_version *same = find_same(catalog, request, registration);
    char *name = same ? same->version : request->version;
    if (same) {
        if (verify_version(txn, request, registration, same, err) != 0)
            return err->status;
    } else {
        if (*name && catalog_version(catalog, request->model, name)) {
            error_set(err, STATUS_ALREADY_EXISTS,
                      "version: %s/%s is registered with another file or configuration",
                      request->model, name);
            return error_reason(err, REASON_VERSION_EXISTS);
        }
        char *next = choose_version(&call->arena, catalog, request->model, err);
        if (!next)
            return err->status;
        name = *name ? name : next;
        struct txn_event event = {.type = "model.registered",
                                  .model = request->model,
                                  .version = name,
                                  .message = registration->info->weights_digest};
        failpoint("register.before_write");
        if (put_model(txn, request->model, err) != 0 || put_version(txn, call, name, err) != 0 ||
            txn_event(txn, &event, err) != 0)
            return err->status;
        failpoint("register.before_commit");
    }
    response->existed = same != NULL;
    response->version =
        build_version(&call->arena, catalog, catalog_version(catalog, request->model, name));
    return 0;
}

static int check_report(const register_request *request,
                        const Sluice__Worker__V1__InspectReport *report, struct error *err)
{
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
    struct service_call *call = arg;
    struct registration *registration = call->arg;
    const register_request *request = call->request;
    struct error err = *status;
    if (err.status == 0 &&
        (!report || report->result_case != SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT))
        error_set(&err, STATUS_INTERNAL, "the inspecting process sent a report of another kind");
    if (err.status == STATUS_INVALID_ARGUMENT && !err.reason)
        error_reason(&err, REASON_MODEL_FILE_INVALID);
    if (err.status == 0)
        check_report(request, report->inspect, &err);
    if (err.status == 0 && request->verify)
        hash_contents(report->inspect, registration->content_sha256, &err);
    if (err.status == 0 &&
        !(registration->info = message_copy_in(&call->arena, report->inspect->info)))
        error_no_memory(&err);
    if (err.status != 0) {
        service_fail(call, &err);
        return;
    }
    for (size_t i = 0; i < report->inspect->n_files; i++)
        registration->size_bytes += report->inspect->files[i]->size_bytes;
    service_submit(call);
}

/* Reads the file. */
static int prepare_register(struct service_call *call, struct error *err)
{
    const register_request *request = call->request;
    struct registration *registration = call->arg;
    const char *arguments[] = {"inspect", "--model", registration->path.absolute,
                               request->verify ? "--verify" : NULL, NULL};
    if (model_path_find(call->model_root, "path", request->path, &registration->path, err) != 0 ||
        model_path_of_config(call->model_root, request->config, &call->arena, &registration->config,
                             err) != 0 ||
        tool_run(call->fleet->tools, arguments, NULL, on_inspected, call, err) != 0)
        return err->status;
    return SERVICE_LATER;
}

const struct service_change service_register = {
    .arg_bytes = sizeof(struct registration),
    .check = check_register,
    .prepare = prepare_register,
    .apply = apply_register,
};

/* --- GetModel, ListModels --- */

int service_get_model(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__GetModelRequest *request = call->request;
    Sluice__Manager__V1__GetModelResponse *response = call->response;
    const pb_model *row = catalog_model(call->catalog, request->model);
    if (!row) {
        error_set(err, STATUS_NOT_FOUND, "model: no model \"%.64s\"", request->model);
        return error_reason(err, REASON_MODEL_NOT_FOUND);
    }
    response->model = build_model(&call->arena, call->catalog, row);
    return 0;
}

int service_list_models(struct service_call *call, struct error *err)
{
    enum { PAGE = 1000, PAGE_BYTES = 2 << 20 }; /* clients take messages of 4 MiB */
    const Sluice__Manager__V1__ListModelsRequest *request = call->request;
    Sluice__Manager__V1__ListModelsResponse *response = call->response;
    const pb_model *row;
    size_t i = 0, n_bytes = 0, n_page = request->page_size ? request->page_size : PAGE;
    if (n_page > PAGE)
        return error_field(err, "page_size", "%zu; %d is the limit", n_page, PAGE);
    if (*request->page_token) {
        i = catalog_find(call->catalog, TABLE_MODEL, request->page_token);
        row = catalog_model_at(call->catalog, i);
        i += row && strcmp(row->name, request->page_token) == 0;
    }
    for (; response->n_models < n_page && n_bytes < PAGE_BYTES &&
           (row = catalog_model_at(call->catalog, i));
         i++) {
        pb_model *model = build_model(&call->arena, call->catalog, row);
        if (!model)
            return error_no_memory(err);
        message_append_in(&call->arena, &response->n_models, &response->models, model);
        n_bytes += protobuf_c_message_get_packed_size(&model->base);
    }
    if (catalog_model_at(call->catalog, i))
        response->next_page_token =
            message_text_in(&call->arena, catalog_model_at(call->catalog, i - 1)->name);
    response->generation = call->catalog->generation;
    return 0;
}

/* --- DeleteModelVersion --- */

/* Deletes the rows of stopped replicas. */
static int delete_replicas(struct txn *txn, const pb_version *version, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_replica *replica;
    for (size_t i = 0; (replica = catalog_replica_at(catalog, i));) {
        if (strcmp(replica->model, version->model) != 0 ||
            strcmp(replica->version, version->version) != 0)
            i++;
        else if (txn_delete(txn, TABLE_REPLICA, replica->id, err) != 0)
            return err->status;
    }
    return 0;
}

static int check_unloaded(const struct catalog *catalog, const pb_version *version,
                          struct error *err)
{
    bool loaded = false;
    CATALOG_EACH(deployment, row, catalog)
        loaded |=
            strcmp(row->model, version->model) == 0 && strcmp(row->version, version->version) == 0;
    CATALOG_EACH(replica, row, catalog)
        loaded |= strcmp(row->model, version->model) == 0 &&
                  strcmp(row->version, version->version) == 0 && (int)row->state != REPLICA_STOPPED;
    if (!loaded)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "version: %s/%s is loaded; unload it first",
              version->model, version->version);
    return error_reason(err, REASON_VERSION_LOADED);
}

static int apply_delete(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__DeleteModelVersionRequest *request = call->request;
    Sluice__Manager__V1__DeleteModelVersionResponse *response = call->response;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_version *version = catalog_version(catalog, request->model, request->version);
    char key[TABLE_KEY_BYTES];
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
    if (service_check_generation(call, key, version->generation, err) != 0 ||
        check_unloaded(catalog, version, err) != 0 ||
        lifecycle_check_no_operation(catalog, &target, err) != 0 ||
        delete_replicas(txn, version, err) != 0 ||
        traffic_forget(txn, request->model, request->version, err) != 0 ||
        txn_delete(txn, TABLE_MODEL_VERSION, key, err) != 0 || txn_event(txn, &event, err) != 0)
        return err->status;
    response->model_deleted = !catalog_resolve_version(catalog, request->model, "");
    if (!response->model_deleted)
        return lifecycle_bump_model(txn, request->model, err);
    return txn_delete(txn, TABLE_TRAFFIC, request->model, err) == 0
               ? txn_delete(txn, TABLE_MODEL, request->model, err)
               : err->status;
}

const struct service_change service_delete_version = {.apply = apply_delete};
