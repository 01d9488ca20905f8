/* Readiness, metadata, configuration and statistics of the served models, from the routes. */
#include "server/gateway/kserve/kserve_models.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "inference/grpc_service.pb-c.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/meter.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/kserve/kserve.h"
#include "server/gateway/kserve/kserve_fields.h"
#include "server/gateway/kserve/kserve_output.h"
#include "server/gateway/replicas/model_name.h"
#include "server/gateway/replicas/replicas.h"
#include "server/gateway/replicas/route_watch.h"

enum { MAX_INPUTS = 64 };

static char platform[] = "sluice";

/* Memory and routes of one answer. */
struct answer {
    struct dispatch *dispatch;
    struct arena arena;
    struct route_table *routes; /* retained */
    const Sluice__Manager__V1__RouteTable *table;
};

static void answer_init(struct answer *a, const struct kserve *kserve)
{
    a->dispatch = kserve->dispatch;
    arena_init(&a->arena, 0, 0);
    a->routes = replicas_routes(kserve->dispatch->replicas);
    a->table = route_table_message(a->routes);
}

static void answer_fini(struct answer *a)
{
    arena_fini(&a->arena);
    route_table_release(a->routes);
}

/* Sends the response, or the error. */
static void finish(struct rpc_call *call, struct answer *a, int rc,
                   const ProtobufCMessage *response, struct error *err)
{
    if (!rc && a->arena.exhausted)
        rc = error_no_memory(err);
    if (rc)
        rpc_call_finish(call, err);
    else
        rpc_call_reply(call, response);
    answer_fini(a);
}

static bool serves(struct dispatch *dispatch, const route *r)
{
    return replicas_take_requests(dispatch->replicas, r) || dispatch_may_wake(dispatch, r);
}

/* Finds the version of a request. Errors as route_table_pick, with KServe's fields. */
static int find(struct answer *a, const char *name, const char *version, const route **out_route,
                struct error *err)
{
    const struct route_wish wish = {.model = name,
                                    .version = version,
                                    .usable = replicas_take_requests,
                                    .arg = a->dispatch->replicas};
    if (!name[0])
        return error_field(err, "name", "is empty");
    return route_table_pick(a->routes, &wish, out_route, err);
}

/* --- ready --- */

void kserve_server_live(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    Inference__ServerLiveResponse response = INFERENCE__SERVER_LIVE_RESPONSE__INIT;
    (void)context;
    (void)request;
    response.live = true;
    rpc_call_reply(call, &response.base);
}

bool kserve_models_server_is_ready(struct dispatch *dispatch)
{
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    bool any = route_watch_connected(atomic_load(&dispatch->watch));
    for (size_t i = 0; !any && i < table->n_routes; i++)
        any = table->routes[i]->loaded && serves(dispatch, table->routes[i]);
    route_table_release(routes);
    return any && !atomic_load(&dispatch->relays->leaving);
}

bool kserve_models_is_ready(struct dispatch *dispatch, const char *name, const char *version)
{
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    bool any = false;
    for (size_t i = 0; !any && i < table->n_routes; i++)
        any = model_name_is_loaded(table->routes[i], name, version) &&
              serves(dispatch, table->routes[i]);
    route_table_release(routes);
    return any;
}

void kserve_server_ready(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    Inference__ServerReadyResponse response = INFERENCE__SERVER_READY_RESPONSE__INIT;
    const struct kserve *kserve = context;
    (void)request;
    response.ready = kserve_models_server_is_ready(kserve->dispatch);
    rpc_call_reply(call, &response.base);
}

void kserve_model_ready(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Inference__ModelReadyRequest *request = (const Inference__ModelReadyRequest *)message;
    Inference__ModelReadyResponse response = INFERENCE__MODEL_READY_RESPONSE__INIT;
    const struct kserve *kserve = context;
    struct error err;
    if (!request->name[0]) {
        error_field(&err, "name", "is empty");
        rpc_call_finish(call, &err);
        return;
    }
    response.ready = kserve_models_is_ready(kserve->dispatch, request->name, request->version);
    rpc_call_reply(call, &response.base);
}

/* --- metadata --- */

void kserve_server_metadata(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    static char version[] = SLUICE_VERSION;
    static char repository[] = "model_repository";
    static char unload[] = "model_repository(unload_dependents)";
    static char statistics[] = "statistics";
    static char configuration[] = "model_configuration";
    char *extensions[] = {repository, unload, statistics, configuration};
    Inference__ServerMetadataResponse response = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
    (void)context;
    (void)request;
    response.name = platform;
    response.version = version;
    response.extensions = extensions;
    response.n_extensions = sizeof(extensions) / sizeof(extensions[0]);
    rpc_call_reply(call, &response.base);
}

typedef Inference__ModelMetadataResponse__TensorMetadata tensor_metadata;

/* Appends a tensor of shape [1], or [-1] for a list. */
static void add_tensor(struct arena *arena, tensor_metadata ***list, size_t *n, const char *name,
                       const char *datatype, bool is_list)
{
    tensor_metadata *tensor = arena_alloc(arena, sizeof(*tensor));
    int64_t *shape = arena_alloc(arena, sizeof(*shape));
    if (!tensor || !shape || !*list)
        return;
    inference__model_metadata_response__tensor_metadata__init(tensor);
    shape[0] = is_list ? -1 : 1;
    tensor->name = (char *)(uintptr_t)name;
    tensor->datatype = (char *)(uintptr_t)datatype;
    tensor->shape = shape;
    tensor->n_shape = 1;
    (*list)[(*n)++] = tensor;
}

void kserve_model_metadata(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Inference__ModelMetadataRequest *request =
        (const Inference__ModelMetadataRequest *)message;
    Inference__ModelMetadataResponse response = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
    struct kserve_input input;
    struct answer a;
    struct error err;
    const route *found = NULL;
    answer_init(&a, context);
    int rc = find(&a, request->name, request->version, &found, &err);
    response.name = request->name;
    response.platform = platform;
    response.versions = arena_calloc(&a.arena, a.table->n_routes + 1, sizeof(char *));
    response.inputs = arena_calloc(&a.arena, MAX_INPUTS, sizeof(*response.inputs));
    response.outputs = arena_calloc(&a.arena, N_KSERVE_OUTPUTS, sizeof(*response.outputs));
    for (size_t i = 0; i < a.table->n_routes && response.versions; i++)
        if (model_name_is_loaded(a.table->routes[i], request->name, request->version))
            response.versions[response.n_versions++] = a.table->routes[i]->version;
    for (size_t i = 0; i < MAX_INPUTS && kserve_fields_input(i, &input); i++)
        add_tensor(&a.arena, &response.inputs, &response.n_inputs, input.name, input.datatype,
                   input.is_list);
    for (int i = 0; i < N_KSERVE_OUTPUTS; i++)
        add_tensor(&a.arena, &response.outputs, &response.n_outputs, kserve_output_facts[i].name,
                   kserve_output_facts[i].datatype, true);
    finish(call, &a, rc, &response.base, &err);
}

/* --- configuration --- */

static int64_t *make_dims(struct arena *arena, bool is_list)
{
    int64_t *dims = arena_alloc(arena, sizeof(*dims));
    if (dims)
        *dims = is_list ? -1 : 1;
    return dims;
}

static void add_config_tensors(struct arena *arena, Inference__ModelConfig *config)
{
    struct kserve_input input;
    config->input = arena_calloc(arena, MAX_INPUTS, sizeof(*config->input));
    config->output = arena_calloc(arena, N_KSERVE_OUTPUTS, sizeof(*config->output));
    for (size_t i = 0; config->input && i < MAX_INPUTS && kserve_fields_input(i, &input); i++) {
        Inference__ModelInput *out = arena_alloc(arena, sizeof(*out));
        if (!out)
            return;
        inference__model_input__init(out);
        out->name = (char *)(uintptr_t)input.name;
        out->data_type = input.type;
        out->dims = make_dims(arena, input.is_list);
        out->n_dims = out->dims ? 1 : 0;
        out->optional = !input.is_required;
        config->input[config->n_input++] = out;
    }
    for (int i = 0; config->output && i < N_KSERVE_OUTPUTS; i++) {
        Inference__ModelOutput *out = arena_alloc(arena, sizeof(*out));
        if (!out)
            return;
        inference__model_output__init(out);
        out->name = (char *)(uintptr_t)kserve_output_facts[i].name;
        out->data_type = kserve_output_facts[i].type;
        out->dims = make_dims(arena, true);
        out->n_dims = out->dims ? 1 : 0;
        config->output[config->n_output++] = out;
    }
}

/* Adds a parameter with the value `text`, or with the number if `text` is NULL. */
static void add_parameter(struct arena *arena, Inference__ModelConfig *config, const char *key,
                          const char *text, uint64_t number)
{
    enum { MAX_PARAMETERS = 8, NUMBER_CHARS = 24 };
    char written[NUMBER_CHARS];
    Inference__ModelConfig__ParametersEntry *entry = arena_alloc(arena, sizeof(*entry));
    Inference__ModelParameter *parameter = arena_alloc(arena, sizeof(*parameter));
    if (!config->parameters)
        config->parameters = arena_calloc(arena, MAX_PARAMETERS, sizeof(*config->parameters));
    if (!entry || !parameter || !config->parameters)
        return;
    inference__model_config__parameters_entry__init(entry);
    inference__model_parameter__init(parameter);
    snprintf(written, sizeof(written), "%llu", (unsigned long long)number);
    text = text ? text : written;
    parameter->string_value = arena_strndup(arena, text, strlen(text));
    entry->key = (char *)(uintptr_t)key;
    entry->value = parameter;
    if (parameter->string_value)
        config->parameters[config->n_parameters++] = entry;
}

/* Any device group that begins with this name runs on the CPU. */
static Inference__ModelInstanceGroup__Kind kind_of(const route *r)
{
    bool cpu = !r->n_replicas || strncmp(r->replicas[0]->device_group, "cpu", 3) == 0;
    return cpu ? INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU
               : INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_MODEL;
}

void kserve_model_config(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Inference__ModelConfigRequest *request = (const Inference__ModelConfigRequest *)message;
    Inference__ModelConfigResponse response = INFERENCE__MODEL_CONFIG_RESPONSE__INIT;
    Inference__ModelConfig config = INFERENCE__MODEL_CONFIG__INIT;
    Inference__ModelTransactionPolicy policy = INFERENCE__MODEL_TRANSACTION_POLICY__INIT;
    Inference__ModelInstanceGroup group = INFERENCE__MODEL_INSTANCE_GROUP__INIT,
                                  *groups[] = {&group};
    struct answer a;
    struct error err;
    const route *found = NULL;
    answer_init(&a, context);
    int rc = find(&a, request->name, request->version, &found, &err);
    config.name = request->name;
    config.platform = config.backend = platform;
    policy.decoupled = true;
    config.model_transaction_policy = &policy;
    response.config = &config;
    add_config_tensors(&a.arena, &config);
    if (!rc) {
        group.name = found->n_replicas ? found->replicas[0]->device_group : group.name;
        group.count = (int32_t)found->n_replicas;
        group.kind = kind_of(found);
        config.instance_group = groups;
        config.n_instance_group = 1;
        add_parameter(&a.arena, &config, "version", found->version, 0);
    }
    if (!rc && found->info) {
        add_parameter(&a.arena, &config, "context_length", NULL, found->info->context_length);
        add_parameter(&a.arena, &config, "vocab_size", NULL, found->info->vocab_size);
        add_parameter(&a.arena, &config, "architecture", found->info->architecture, 0);
    }
    finish(call, &a, rc, &response.base, &err);
}

/* --- statistics --- */

static Inference__StatisticDuration *duration(struct arena *arena, uint64_t n, uint64_t ns)
{
    Inference__StatisticDuration *out = arena_alloc(arena, sizeof(*out));
    if (!out)
        return NULL;
    inference__statistic_duration__init(out);
    out->count = n;
    out->ns = ns;
    return out;
}

static Inference__ModelStatistics *build_statistics(struct answer *a, const route *r)
{
    Inference__ModelStatistics *out = arena_alloc(&a->arena, sizeof(*out));
    Inference__InferStatistics *times = arena_alloc(&a->arena, sizeof(*times));
    struct meter_totals totals = {0};
    if (!out || !times)
        return NULL;
    meters_get(a->dispatch->relays->meters, r->model, r->version, &totals);
    inference__model_statistics__init(out);
    inference__infer_statistics__init(times);
    uint64_t busy_ns = totals.ok_ns + totals.failed_ns;
    out->name = r->model;
    out->version = r->version;
    out->last_inference = (uint64_t)(totals.last_end_unix_ns / NS_PER_MS);
    out->inference_count = totals.n_ok;
    out->execution_count = totals.n_ok;
    times->success = duration(&a->arena, totals.n_ok, totals.ok_ns);
    times->fail = duration(&a->arena, totals.n_failed, totals.failed_ns);
    times->queue = duration(&a->arena, totals.n_started, totals.queue_ns);
    times->compute_infer = duration(&a->arena, totals.n_ok + totals.n_failed,
                                    busy_ns > totals.queue_ns ? busy_ns - totals.queue_ns : 0);
    times->compute_input = duration(&a->arena, 0, 0);
    times->compute_output = duration(&a->arena, 0, 0);
    out->inference_stats = times;
    return out;
}

void kserve_model_statistics(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Inference__ModelStatisticsRequest *request =
        (const Inference__ModelStatisticsRequest *)message;
    Inference__ModelStatisticsResponse response = INFERENCE__MODEL_STATISTICS_RESPONSE__INIT;
    struct answer a;
    struct error err;
    const route *found;
    answer_init(&a, context);
    int rc = request->name[0] ? find(&a, request->name, request->version, &found, &err) : 0;
    response.model_stats =
        arena_calloc(&a.arena, a.table->n_routes + 1, sizeof(*response.model_stats));
    for (size_t i = 0; !rc && i < a.table->n_routes && response.model_stats; i++) {
        const route *r = a.table->routes[i];
        bool wanted =
            request->name[0] ? model_name_is_loaded(r, request->name, request->version) : r->loaded;
        Inference__ModelStatistics *one = wanted ? build_statistics(&a, r) : NULL;
        if (one)
            response.model_stats[response.n_model_stats++] = one;
    }
    finish(call, &a, rc, &response.base, &err);
}
