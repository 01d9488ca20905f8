/* RepositoryIndex, RepositoryModelLoad and RepositoryModelUnload: commands to the manager, which
 * knows all registered models. The check of calls has found the caller to be an operator
 * (access_config.control_prefix). The manager sees this server's user as the caller; the request
 * id of its audit events has the operator's name.
 *
 * A load or unload is a chain of calls to the manager. A load begins with GetModel. The command
 * follows, then WaitOperation until the operation has ended. The command then waits until the
 * routes of this server show the change. A client that leaves does not undo a command. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text/json_cursor.h"
#include "inference/grpc_service.pb-c.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/identity.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/kserve/kserve.h"
#include "server/gateway/replicas/model_name.h"
#include "server/gateway/replicas/replicas.h"
#include "server/gateway/replicas/route_watch.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { ASK_MS = 10000, WAIT_MS = 5000, ROUTES_MS = 10000, NAME_BYTES = 65, MAX_KEY_BYTES = 64 };

struct kserve_command {
    struct kserve_command *next; /* kserve->done */
    struct kserve *kserve;
    struct rpc_call *call; /* retained */
    struct arena arena;
    bool is_load;
    struct model_name name;
    char device_group[NAME_BYTES]; /* empty: not named */
    char request_id[129], operation[65];
    uint32_t n_replicas, tp; /* 0: not named */
    int64_t done_ns;         /* clock_now_ns() when the operation was done */
    bool ready_only;         /* RepositoryIndex */
    Inference__RepositoryIndexResponse index;
    size_t capacity; /* allocated entries of index.models */
};

static struct kserve_command *make_command(struct kserve *kserve, struct rpc_call *call)
{
    struct kserve_command *command = calloc(1, sizeof(*command));
    char uuid[UUID_BYTES];
    if (!command)
        return NULL;
    command->kserve = kserve;
    command->call = call;
    rpc_call_retain(call);
    arena_init(&command->arena, 0, 0);
    rng_uuid(uuid);
    snprintf(command->request_id, sizeof(command->request_id), "kserve/%.80s/%s",
             gateway_caller(call), uuid);
    return command;
}

static void free_command(struct kserve_command *command)
{
    arena_fini(&command->arena);
    rpc_call_release(command->call);
    free(command);
}

/* Ends the call with an error, and frees the command. */
static void fail(struct kserve_command *command, const struct error *status)
{
    struct error err = *status;
    bool unanswered =
        !err.reason && (err.status == STATUS_UNAVAILABLE || err.status == STATUS_DEADLINE_EXCEEDED);
    if (unanswered && command->operation[0]) /* gRPC's text would reveal the path of the socket */
        error_set(&err, STATUS_UNAVAILABLE,
                  "the manager does not answer; operation %s may go on there", command->operation);
    else if (unanswered)
        error_set(&err, STATUS_UNAVAILABLE, "the manager does not answer");
    rpc_call_finish(command->call, &err);
    free_command(command);
}

/* Calls the manager; on an error the command ends. */
static void ask(struct kserve_command *command, const char *method, const ProtobufCMessage *request,
                uint32_t timeout_ms, rpc_reply_fn *on_reply)
{
    struct error err;
    if (route_watch_ask(atomic_load(&command->kserve->dispatch->watch),
                        &sluice__manager__v1__model_manager__descriptor, method, request,
                        timeout_ms, on_reply, command, &err) != 0)
        fail(command, &err);
}

/* --- the end of a command --- */

static bool is_shown(struct kserve_command *command)
{
    struct replicas *replicas = command->kserve->dispatch->replicas;
    struct route_table *routes = replicas_routes(replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    bool serves = false, loaded = false;
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        bool mine = model_name_is_loaded(r, command->name.model, command->name.version);
        loaded = loaded || mine;
        serves = serves || (mine && replicas_take_requests(replicas, r));
    }
    route_table_release(routes);
    return command->is_load ? serves : !loaded;
}

static void reply(struct kserve_command *command)
{
    Inference__RepositoryModelLoadResponse loaded = INFERENCE__REPOSITORY_MODEL_LOAD_RESPONSE__INIT;
    Inference__RepositoryModelUnloadResponse unloaded =
        INFERENCE__REPOSITORY_MODEL_UNLOAD_RESPONSE__INIT;
    rpc_call_reply(command->call, command->is_load ? &loaded.base : &unloaded.base);
    free_command(command);
}

static struct kserve_command *take_done(struct kserve *kserve)
{
    pthread_mutex_lock(&kserve->lock);
    struct kserve_command *list = kserve->done;
    kserve->done = NULL;
    pthread_mutex_unlock(&kserve->lock);
    return list;
}

static void put_done(struct kserve_command *command)
{
    struct kserve *kserve = command->kserve;
    pthread_mutex_lock(&kserve->lock);
    command->next = kserve->done;
    kserve->done = command;
    pthread_mutex_unlock(&kserve->lock);
}

void kserve_tick(struct kserve *kserve, int64_t now_ns)
{
    struct kserve_command *list = take_done(kserve);
    while (list) {
        struct kserve_command *command = list;
        list = command->next;
        /* After ROUTES_MS another command may have undone this command. */
        if (is_shown(command) || now_ns - command->done_ns > ROUTES_MS * NS_PER_MS ||
            rpc_call_cancelled(command->call))
            reply(command);
        else
            put_done(command);
    }
}

void kserve_end(struct kserve *kserve)
{
    struct kserve_command *list = take_done(kserve);
    while (list) {
        struct kserve_command *command = list;
        list = command->next;
        reply(command);
    }
}

/* --- the operation --- */

static void on_waited(void *arg, const ProtobufCMessage *message, const struct error *status);

static void wait_for(struct kserve_command *command)
{
    Sluice__Manager__V1__WaitOperationRequest request =
        SLUICE__MANAGER__V1__WAIT_OPERATION_REQUEST__INIT;
    struct error err;
    if (rpc_call_cancelled(command->call)) {
        error_set(&err, STATUS_CANCELLED, "the client cancelled or is gone");
        fail(command, &err);
        return;
    }
    request.id = command->operation;
    request.timeout_ms = WAIT_MS;
    ask(command, "WaitOperation", &request.base, WAIT_MS + ASK_MS, on_waited);
}

static void end_operation(struct kserve_command *command,
                          const Sluice__Manager__V1__Operation *operation)
{
    struct error err;
    if (operation->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_DONE) {
        if (command->is_load && operation->version[0])
            snprintf(command->name.version, sizeof(command->name.version), "%s",
                     operation->version);
        command->done_ns = clock_now_ns();
        put_done(command); /* the ticker answers */
        return;
    }
    error_set(&err, STATUS_UNAVAILABLE, "operation %s was cancelled", operation->id);
    if (operation->error) {
        error_set(&err, status_from_grpc(operation->error->code), "%s", operation->error->message);
        error_reason_parse(&err, operation->error->reason);
    }
    fail(command, &err);
}

static void follow(struct kserve_command *command, const Sluice__Manager__V1__Operation *operation)
{
    struct error err;
    if (!operation) {
        error_set(&err, STATUS_INTERNAL, "the manager's answer has no operation");
        fail(command, &err);
        return;
    }
    snprintf(command->operation, sizeof(command->operation), "%s", operation->id);
    if (operation->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_PENDING ||
        operation->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_RUNNING)
        wait_for(command);
    else
        end_operation(command, operation);
}

/* Each wait is short, so that the end of the client's call is seen. */
static void on_waited(void *arg, const ProtobufCMessage *message, const struct error *status)
{
    if (!message)
        fail(arg, status);
    else
        follow(arg, ((const Sluice__Manager__V1__WaitOperationResponse *)message)->operation);
}

static void on_load(void *arg, const ProtobufCMessage *message, const struct error *status)
{
    if (!message)
        fail(arg, status);
    else
        follow(arg, ((const Sluice__Manager__V1__LoadModelVersionResponse *)message)->operation);
}

static void on_unload(void *arg, const ProtobufCMessage *message, const struct error *status)
{
    if (!message)
        fail(arg, status);
    else
        follow(arg, ((const Sluice__Manager__V1__UnloadModelVersionResponse *)message)->operation);
}

static void log_command(const struct kserve_command *command, const char *rpc)
{
    log_info(LOG_EVENT("repository command"), LOG_STR("rpc", rpc),
             LOG_STR("caller", gateway_caller(command->call)),
             LOG_STR("model", command->name.model), LOG_STR("version", command->name.version),
             LOG_STR("request_id", command->request_id));
}

/* --- the name of a model --- */

static int read_name(struct kserve_command *command, const char *repository, const char *name,
                     struct error *err)
{
    if (repository[0])
        return error_field(err, "repository_name",
                           "\"%.64s\": there is one repository; leave the name empty", repository);
    return model_name_read(name, "model_name", &command->name, err);
}

/* --- load --- */

static int read_count(struct json_cursor *cursor, const char *field, uint32_t *out,
                      struct error *err)
{
    struct json_number number;
    if (json_cursor_number(cursor, &number, err) != 0)
        return error_field(err, field, "must be a whole number");
    if (!number.is_integer || number.is_negative || !number.u || number.u > UINT32_MAX)
        return error_field(err, field, "must be a whole number from 1 on");
    *out = (uint32_t)number.u;
    return 0;
}

static int read_setting(struct kserve_command *command, struct json_cursor *cursor, const char *key,
                        struct error *err)
{
    char field[ERROR_FIELD_BYTES];
    const char *text;
    size_t n = 0;
    snprintf(field, sizeof(field), "config.%.64s", key);
    if (strcmp(key, "n_replicas") == 0)
        return read_count(cursor, field, &command->n_replicas, err);
    if (strcmp(key, "tp") == 0)
        return read_count(cursor, field, &command->tp, err);
    if (strcmp(key, "device_group") != 0)
        return error_field(
            err, field,
            "is not read; give device_group, n_replicas or tp, and other settings to "
            "`sluice register` or `sluice load`");
    if (json_cursor_string(cursor, &command->arena, NAME_BYTES - 1, &text, &n, err) != 0)
        return error_field(err, field, "must be a text of at most %d bytes", NAME_BYTES - 1);
    snprintf(command->device_group, sizeof(command->device_group), "%s", text);
    return 0;
}

/* The parameter "config" of a load: a JSON object. */
static int read_config(struct kserve_command *command, const char *text, struct error *err)
{
    struct json_cursor cursor;
    const char *key = "";
    int rc = 0;
    if (json_cursor_init(&cursor, text, strlen(text), "config", 0, err) != 0 ||
        json_cursor_enter_object(&cursor, err) != 0)
        return error_field(err, "config", "must be a JSON object");
    while (!rc) {
        if (json_cursor_next_key(&cursor, &command->arena, MAX_KEY_BYTES, &key, err) != 0)
            return error_field(err, "config", "must be a JSON object");
        if (!key)
            break;
        rc = read_setting(command, &cursor, key, err);
    }
    if (!rc && json_cursor_end(&cursor, err) != 0)
        rc = error_field(err, "config", "has more than one JSON object");
    return rc;
}

static int read_load(struct kserve_command *command,
                     const Inference__RepositoryModelLoadRequest *request, struct error *err)
{
    int rc = read_name(command, request->repository_name, request->model_name, err);
    for (size_t i = 0; !rc && i < request->n_parameters; i++) {
        const char *key = request->parameters[i]->key;
        const Inference__ModelRepositoryParameter *value = request->parameters[i]->value;
        if (strcmp(key, "config") != 0)
            rc = error_field(
                err, "parameters",
                "\"%.64s\" is not read; register a model's files with `sluice register`", key);
        else if (!value || value->parameter_choice_case !=
                               INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_STRING_PARAM)
            rc = error_field(err, "config", "must be a text");
        else
            rc = read_config(command, value->string_param, err);
    }
    return rc;
}

/* Finds the version that a load names; without a name, the version that was registered last. */
static const Sluice__Manager__V1__ModelVersion *
find_version(const struct kserve_command *command, const Sluice__Manager__V1__Model *model)
{
    const Sluice__Manager__V1__ModelVersion *found = NULL;
    for (size_t i = 0; model && i < model->n_versions; i++)
        if (!command->name.version[0] ||
            strcmp(model->versions[i]->version, command->name.version) == 0)
            found = model->versions[i];
    return found;
}

/* A version that is loaded stays where it is, as a load again changes nothing. */
static void on_model(void *arg, const ProtobufCMessage *message, const struct error *status)
{
    struct kserve_command *command = arg;
    Sluice__Manager__V1__LoadModelVersionRequest request =
        SLUICE__MANAGER__V1__LOAD_MODEL_VERSION_REQUEST__INIT;
    if (!message) {
        fail(command, status);
        return;
    }
    const Sluice__Manager__V1__ModelVersion *version =
        find_version(command, ((const Sluice__Manager__V1__GetModelResponse *)message)->model);
    const Sluice__Manager__V1__Deployment *loaded =
        version && version->n_deployments ? version->deployments[0] : NULL;
    request.request_id = command->request_id;
    request.model = command->name.model;
    request.version = command->name.version;
    request.device_group = command->device_group;
    request.has_n_replicas = command->n_replicas > 0;
    request.n_replicas = command->n_replicas;
    request.has_tp = command->tp > 0;
    request.tp = command->tp;
    if (loaded && !command->device_group[0]) {
        request.device_group = loaded->device_group;
        request.has_n_replicas = request.has_tp = true;
        request.n_replicas = command->n_replicas ? command->n_replicas : loaded->n_replicas;
        request.tp = command->tp ? command->tp : loaded->tp;
        request.has_pp = loaded->pp > 0;
        request.pp = loaded->pp;
        request.config = loaded->config;
    }
    log_command(command, "RepositoryModelLoad");
    ask(command, "LoadModelVersion", &request.base, ASK_MS, on_load);
}

void kserve_repository_load(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    struct kserve_command *command = make_command(context, call);
    struct error err;
    if (!command) {
        error_no_memory(&err);
        rpc_call_finish(call, &err);
        return;
    }
    command->is_load = true;
    if (read_load(command, (const Inference__RepositoryModelLoadRequest *)message, &err) != 0) {
        fail(command, &err);
        return;
    }
    request.model = command->name.model;
    ask(command, "GetModel", &request.base, ASK_MS, on_model);
}

/* --- unload --- */

/* No model depends on another model, so unload_dependents has nothing to unload. */
static int read_unload(struct kserve_command *command,
                       const Inference__RepositoryModelUnloadRequest *request, struct error *err)
{
    int rc = read_name(command, request->repository_name, request->model_name, err);
    for (size_t i = 0; !rc && i < request->n_parameters; i++) {
        const char *key = request->parameters[i]->key;
        if (strcmp(key, "unload_dependents") != 0)
            rc = error_field(err, "parameters", "\"%.64s\" is not read; give unload_dependents",
                             key);
    }
    return rc;
}

void kserve_repository_unload(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    Sluice__Manager__V1__UnloadModelVersionRequest request =
        SLUICE__MANAGER__V1__UNLOAD_MODEL_VERSION_REQUEST__INIT;
    struct kserve_command *command = make_command(context, call);
    struct error err;
    if (!command) {
        error_no_memory(&err);
        rpc_call_finish(call, &err);
        return;
    }
    if (read_unload(command, (const Inference__RepositoryModelUnloadRequest *)message, &err) != 0) {
        fail(command, &err);
        return;
    }
    request.request_id = command->request_id;
    request.model = command->name.model;
    request.version = command->name.version;
    log_command(command, "RepositoryModelUnload");
    ask(command, "UnloadModelVersion", &request.base, ASK_MS, on_unload);
}

/* --- index --- */

typedef Inference__RepositoryIndexResponse__ModelIndex model_index;

static const char *state_name(Sluice__Manager__V1__ModelVersionState state)
{
    switch (state) {
    case SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_READY:
        return "READY";
    case SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_LOADING:
        return "LOADING";
    case SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_UNLOADING:
        return "UNLOADING";
    default:
        return "UNAVAILABLE";
    }
}

static const char *state_reason(const Sluice__Manager__V1__ModelVersion *version)
{
    switch (version->state) {
    case SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_REGISTERED:
        return "not loaded";
    case SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_PARKED:
        return "parked";
    case SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_FAILED:
        return version->last_error ? version->last_error->message : "failed";
    default:
        return "";
    }
}

static char *copy(struct kserve_command *command, const char *text)
{
    return arena_strndup(&command->arena, text, strlen(text));
}

static void add_version(struct kserve_command *command,
                        const Sluice__Manager__V1__ModelVersion *version)
{
    const char *state = state_name(version->state);
    model_index *row = arena_alloc(&command->arena, sizeof(*row));
    if (command->ready_only && strcmp(state, "READY") != 0)
        return;
    if (command->index.n_models == command->capacity) {
        size_t capacity = command->capacity ? 2 * command->capacity : 64;
        model_index **more = arena_calloc(&command->arena, capacity, sizeof(*more));
        if (!more)
            return; /* the arena is exhausted, and the answer is an error */
        for (size_t i = 0; i < command->index.n_models; i++)
            more[i] = command->index.models[i];
        command->index.models = more;
        command->capacity = capacity;
    }
    if (!row)
        return;
    inference__repository_index_response__model_index__init(row);
    row->name = copy(command, version->model);
    row->version = copy(command, version->version);
    row->state = copy(command, state);
    row->reason = copy(command, state_reason(version));
    command->index.models[command->index.n_models++] = row;
}

static void on_list(void *arg, const ProtobufCMessage *message, const struct error *status);

static void ask_page(struct kserve_command *command, char *token)
{
    Sluice__Manager__V1__ListModelsRequest request = SLUICE__MANAGER__V1__LIST_MODELS_REQUEST__INIT;
    request.page_token = token;
    ask(command, "ListModels", &request.base, ASK_MS, on_list);
}

static void on_list(void *arg, const ProtobufCMessage *message, const struct error *status)
{
    struct kserve_command *command = arg;
    struct error err;
    const Sluice__Manager__V1__ListModelsResponse *page =
        (const Sluice__Manager__V1__ListModelsResponse *)message;
    if (!page) {
        fail(command, status);
        return;
    }
    for (size_t i = 0; i < page->n_models; i++)
        for (size_t k = 0; k < page->models[i]->n_versions; k++)
            add_version(command, page->models[i]->versions[k]);
    if (command->arena.exhausted) {
        error_no_memory(&err);
        fail(command, &err);
    } else if (page->next_page_token[0]) {
        ask_page(command, page->next_page_token);
    } else {
        rpc_call_reply(command->call, &command->index.base);
        free_command(command);
    }
}

void kserve_repository_index(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Inference__RepositoryIndexRequest *request =
        (const Inference__RepositoryIndexRequest *)message;
    struct kserve_command *command = make_command(context, call);
    struct error err;
    if (!command) {
        error_no_memory(&err);
        rpc_call_finish(call, &err);
        return;
    }
    inference__repository_index_response__init(&command->index);
    command->ready_only = request->ready;
    if (request->repository_name[0]) {
        error_field(&err, "repository_name",
                    "\"%.64s\": there is one repository; leave the name empty",
                    request->repository_name);
        fail(command, &err);
        return;
    }
    ask_page(command, (char *)(uintptr_t)protobuf_c_empty_string);
}
