#include "server/gateway/vllm/vllm_engine.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "base/trace.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/identity.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/front/call_sink.h"
#include "server/gateway/front/service.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/model_name.h"
#include "server/gateway/replicas/replicas.h"
#include "server/gateway/vllm/vllm_answer.h"
#include "server/gateway/vllm/vllm_request.h"
#include "vllm/grpc/engine/vllm_engine.pb-c.h"

enum { MAX_ABORTS = 1024 };

static const char model_key[] = "x-sluice-model";

/* --- the model --- */

/* The messages have no field for the model. The metadata names the model; without the key, the only
 * served model answers. */
static int find_model(const struct rpc_call *call, const struct route_table *routes,
                      struct model_name *out, struct error *err)
{
    if (rpc_call_n_metadata(call, model_key) > 1)
        return error_field(err, model_key, "send the key once");
    return model_name_choose(routes, rpc_call_metadata(call, model_key, NULL), model_key, out, err);
}

/* --- Generate --- */

static int start(struct vllm_engine *engine, struct rpc_call *call, struct vllm_request *request,
                 struct vllm_answer *answer, struct error *err)
{
    struct dispatch *dispatch = engine->dispatch;
    struct trace_context trace;
    struct model_name name;
    const struct relay_params params = {.request = &request->generate,
                                        .caller = gateway_caller(call),
                                        .trace = &trace,
                                        .deadline_ns = rpc_call_deadline_ns(call)};
    struct relay *relay;
    struct route_table *routes = replicas_routes(dispatch->replicas);
    int rc = find_model(call, routes, &name, err);
    route_table_release(routes);
    if (rc)
        return rc;
    request->generate.model = name.model;
    request->generate.version = name.version;
    gateway_trace(call, &trace);
    rc = generation_open(dispatch, &params, &relay, err);
    if (rc)
        return rc;
    rc = call_sink_attach(call, relay, &vllm_answer_form, answer, err);
    if (rc)
        dispatch_close(relay, rc);
    else
        generation_start(dispatch, relay);
    relay_release(relay);
    return rc;
}

static void handle_generate(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Vllm__Grpc__Engine__GenerateRequest *generate =
        (const Vllm__Grpc__Engine__GenerateRequest *)message;
    struct vllm_engine *engine = context;
    struct vllm_request request;
    struct vllm_answer *answer = NULL;
    struct error err;
    atomic_store(&engine->last_unix_ns, clock_wall_ns());
    int rc = vllm_request_read(&request, generate, &err);
    if (!rc && !(answer = vllm_answer_create(&request, generate->stream)))
        rc = error_no_memory(&err);
    if (!rc)
        rc = start(engine, call, &request, answer, &err);
    if (rc) {
        vllm_request_name_field(&err);
        rpc_call_finish(call, &err);
        vllm_answer_destroy(answer);
    }
    vllm_request_fini(&request);
}

static void handle_abort(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Vllm__Grpc__Engine__AbortRequest *request =
        (const Vllm__Grpc__Engine__AbortRequest *)message;
    Vllm__Grpc__Engine__AbortResponse response = VLLM__GRPC__ENGINE__ABORT_RESPONSE__INIT;
    struct vllm_engine *engine = context;
    struct error err;
    if (request->n_request_ids > MAX_ABORTS) {
        error_field(&err, "request_ids", "%zu ids, limit %d", request->n_request_ids, MAX_ABORTS);
        rpc_call_finish(call, &err);
        return;
    }
    error_set(&err, STATUS_CANCELLED, "aborted by request_id");
    for (size_t i = 0; i < request->n_request_ids; i++) {
        struct relay *relay = registry_find(&engine->dispatch->relays->registry,
                                            gateway_caller(call), request->request_ids[i]);
        if (relay)
            dispatch_cancel(relay, &err);
        relay_release(relay);
    }
    rpc_call_reply(call, &response.base);
}

static void handle_embed(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct error err;
    (void)context;
    (void)request;
    error_set(&err, STATUS_UNIMPLEMENTED, "%s: no model that loads gives embeddings",
              rpc_call_method(call) + 1);
    error_reason(&err, REASON_NOT_BUILT);
    rpc_call_finish(call, &err);
}

/* --- facts --- */

static void handle_health(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    static char serving[] = "serving", idle[] = "no replica takes requests";
    static char leaving[] = "the server is going away";
    Vllm__Grpc__Engine__HealthCheckResponse response =
        VLLM__GRPC__ENGINE__HEALTH_CHECK_RESPONSE__INIT;
    struct vllm_engine *engine = context;
    struct dispatch *dispatch = engine->dispatch;
    struct model_name name = {.model = ""};
    struct error err;
    (void)request;
    if (rpc_call_n_metadata(call, model_key) && find_model(call, NULL, &name, &err) != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    for (size_t i = 0; !response.healthy && i < table->n_routes; i++) {
        const route *r = table->routes[i];
        bool wanted = name.model[0] ? model_name_is_loaded(r, name.model, name.version) : r->loaded;
        response.healthy = wanted && (replicas_take_requests(dispatch->replicas, r) ||
                                      dispatch_may_wake(dispatch, r));
    }
    response.message = response.healthy ? serving : idle;
    if (atomic_load(&dispatch->relays->leaving)) {
        response.healthy = false;
        response.message = leaving;
    }
    rpc_call_reply(call, &response.base);
    route_table_release(routes);
}

/* Writes the defaults that the model's files give, as a JSON object. */
static void write_defaults(const Sluice__V1__DefaultSampling *d, struct strbuf *out)
{
    const char *before = "";
    strbuf_add_char(out, '{');
    if (!d) {
        strbuf_add_char(out, '}');
        return;
    }
    const struct {
        const char *name;
        bool given;
        double value;
    } rows[] = {
        {"temperature", d->has_temperature, (double)d->temperature},
        {"top_k", d->has_top_k, (double)d->top_k},
        {"top_p", d->has_top_p, (double)d->top_p},
        {"min_p", d->has_min_p, (double)d->min_p},
        {"typical_p", d->has_typical_p, (double)d->typical_p},
        {"repetition_penalty", d->has_repetition_penalty, (double)d->repetition_penalty},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!rows[i].given)
            continue;
        strbuf_printf(out, "%s\"%s\":%.9g", before, rows[i].name, rows[i].value);
        before = ",";
    }
    strbuf_add_char(out, '}');
}

static void fill_info(const route *r, Vllm__Grpc__Engine__GetModelInfoResponse *out)
{
    const Sluice__V1__ModelInfo *info = r->info;
    out->served_model_name = r->model;
    out->is_generation = true;
    if (!info)
        return;
    out->max_context_length = info->context_length;
    out->vocab_size = info->vocab_size;
    out->model_type = info->architecture;
    out->architectures = (char **)(uintptr_t)&info->architecture;
    out->n_architectures = 1;
    out->eos_token_ids = (int32_t *)info->eos_token_ids;
    out->n_eos_token_ids = info->n_eos_token_ids;
    out->bos_token_id = info->has_bos_token_id ? (int32_t)info->bos_token_id : 0;
    uint32_t most = info->context_length ? info->context_length - 1 : 0;
    if (info->limits && info->limits->max_prompt_tokens && info->limits->max_prompt_tokens < most)
        most = info->limits->max_prompt_tokens;
    out->max_req_input_len = (int32_t)most;
}

static void handle_model_info(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    Vllm__Grpc__Engine__GetModelInfoResponse response =
        VLLM__GRPC__ENGINE__GET_MODEL_INFO_RESPONSE__INIT;
    struct vllm_engine *engine = context;
    struct route_table *routes = replicas_routes(engine->dispatch->replicas);
    char path[2 * MODEL_NAME_BYTES];
    struct strbuf defaults;
    struct model_name name;
    struct error err;
    const route *found = NULL;
    (void)request;
    strbuf_init(&defaults, 0);
    int rc = find_model(call, routes, &name, &err);
    if (!rc)
        rc = route_table_pick(routes,
                              &(struct route_wish){.model = name.model,
                                                   .version = name.version,
                                                   .usable = replicas_take_requests,
                                                   .arg = engine->dispatch->replicas},
                              &found, &err);
    if (!rc) {
        fill_info(found, &response);
        write_defaults(found->info ? found->info->default_sampling : NULL, &defaults);
        snprintf(path, sizeof(path), "%s:%s", found->model, found->version);
        response.model_path = path;
        response.default_sampling_params_json = (char *)(uintptr_t)strbuf_str(&defaults);
        rc = strbuf_failed(&defaults) ? error_no_memory(&err) : 0;
    }
    if (rc) {
        vllm_request_name_field(&err);
        rpc_call_finish(call, &err);
    } else {
        rpc_call_reply(call, &response.base);
    }
    strbuf_fini(&defaults);
    route_table_release(routes);
}

static void handle_server_info(void *context, struct rpc_call *call,
                               const ProtobufCMessage *request)
{
    static char type[] = "sluice";
    Vllm__Grpc__Engine__GetServerInfoResponse response =
        VLLM__GRPC__ENGINE__GET_SERVER_INFO_RESPONSE__INIT;
    struct vllm_engine *engine = context;
    const struct relay_shared *relays = engine->dispatch->relays;
    struct gateway_counters totals;
    (void)request;
    counters_get(relays->counters, &totals);
    response.active_requests = (uint32_t)totals.live;
    response.last_receive_timestamp = (double)atomic_load(&engine->last_unix_ns) / NS_PER_S;
    response.uptime_seconds = (double)(clock_now_ns() - engine->started_ns) / NS_PER_S;
    response.server_type = type;
    response.data_parallel_size = 1;
    response.max_num_seqs = (int32_t)relays->limits->max_concurrent;
    rpc_call_reply(call, &response.base);
}

static const struct rpc_method methods[] = {
    {"Generate", RPC_SHAPE_SERVER_STREAM, handle_generate},
    {"Embed", RPC_SHAPE_UNARY, handle_embed},
    {"HealthCheck", RPC_SHAPE_UNARY, handle_health},
    {"Abort", RPC_SHAPE_UNARY, handle_abort},
    {"GetModelInfo", RPC_SHAPE_UNARY, handle_model_info},
    {"GetServerInfo", RPC_SHAPE_UNARY, handle_server_info},
};

void vllm_engine_init(struct vllm_engine *engine, struct service *service)
{
    engine->service = service;
    engine->dispatch = service->dispatch;
    engine->started_ns = clock_now_ns();
    atomic_init(&engine->last_unix_ns, 0);
}

void vllm_engine_table(struct vllm_engine *engine, struct rpc_service *out_table)
{
    *out_table = (struct rpc_service){
        .descriptor = &vllm__grpc__engine__vllm_engine__descriptor,
        .methods = methods,
        .n_methods = sizeof(methods) / sizeof(methods[0]),
        .context = engine,
    };
}
