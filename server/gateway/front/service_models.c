/* ListModels and GetModel: the route table and the links' load, as clients see them. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/front/service.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/model_name.h"
#include "server/gateway/replicas/replicas.h"

enum { MAX_PAGE = 1000 };

struct builder {
    struct dispatch *dispatch;
    struct arena arena; /* memory of the response */
    const Sluice__Manager__V1__RouteTable *table;
};

/* Adds up the load of a version's links. Takes the replicas' lock; the links' own locks come
 * below it. */
static void add_load(struct builder *b, const route *r, Sluice__V1__ServedVersion *out)
{
    struct replicas *replicas = b->dispatch->replicas;
    out->n_replicas = (uint32_t)r->n_replicas;
    out->numerics_ids = arena_calloc(&b->arena, r->n_replicas + 1, sizeof(char *));
    out->fingerprints = arena_calloc(&b->arena, r->n_replicas + 1, sizeof(char *));
    pthread_mutex_lock(&replicas->lock);
    for (uint32_t i = 0; i < replicas->n_links; i++) {
        struct link_facts facts;
        struct link *link = replicas->links[i];
        if (!link_serves(link, r->model, r->version) || !link_usable(link))
            continue;
        out->n_ready_replicas++;
        if (!link_get_facts(link, &facts))
            continue;
        out->n_running += facts.n_running;
        out->n_queued += facts.n_queued;
        bool known = false;
        for (size_t k = 0; k < out->n_numerics_ids; k++)
            known = known || strcmp(out->numerics_ids[k], facts.numerics_id) == 0;
        if (known || !out->numerics_ids || !out->fingerprints ||
            out->n_numerics_ids == r->n_replicas)
            continue;
        out->numerics_ids[out->n_numerics_ids++] =
            arena_strndup(&b->arena, facts.numerics_id, strlen(facts.numerics_id));
        out->fingerprints[out->n_fingerprints++] =
            arena_strndup(&b->arena, facts.fingerprint, strlen(facts.fingerprint));
    }
    pthread_mutex_unlock(&replicas->lock);
}

static void cap(uint32_t *value, uint64_t limit)
{
    if (*value > limit)
        *value = (uint32_t)limit;
}

/* Returns a version's facts, with this server's limits where they are lower. NULL if memory is
 * exhausted. */
static Sluice__V1__ModelInfo *with_server_limits(struct builder *b,
                                                 const Sluice__V1__ModelInfo *info)
{
    const struct gateway_limits *l = b->dispatch->relays->limits;
    Sluice__V1__ModelInfo *out = arena_alloc(&b->arena, sizeof(*out));
    Sluice__V1__ModelLimits *limits = arena_alloc(&b->arena, sizeof(*limits));
    if (!out || !limits)
        return NULL;
    *out = *info;
    *limits = *info->limits;
    out->limits = limits;
    cap(&limits->max_choices, l->max_choices);
    cap(&limits->max_stop_strings, l->max_stop_strings);
    cap(&limits->max_stop_bytes, l->max_stop_bytes);
    cap(&limits->max_top_n, l->max_top_n);
    cap(&limits->max_logit_bias, l->max_logit_bias);
    cap(&limits->max_concurrent_requests, l->max_concurrent);
    cap(&limits->max_queued_requests, l->max_queued);
    return out;
}

/* Builds a model with its loaded versions (or only the named one). NULL if there is none, or
 * memory is exhausted. */
static Sluice__V1__ServedModel *build_model(struct builder *b, const char *name,
                                            const char *version)
{
    Sluice__V1__ServedModel *model = arena_alloc(&b->arena, sizeof(*model));
    if (!model)
        return NULL;
    *model = (Sluice__V1__ServedModel)SLUICE__V1__SERVED_MODEL__INIT;
    model->versions = arena_calloc(&b->arena, b->table->n_routes + 1, sizeof(*model->versions));
    if (!model->versions)
        return NULL;
    for (size_t i = 0; i < b->table->n_routes; i++) {
        const route *r = b->table->routes[i];
        if (!model_name_is_loaded(r, name, version))
            continue;
        Sluice__V1__ServedVersion *out = arena_alloc(&b->arena, sizeof(*out));
        if (!out)
            return NULL;
        *out = (Sluice__V1__ServedVersion)SLUICE__V1__SERVED_VERSION__INIT;
        out->version = r->version;
        out->info = r->info && r->info->limits ? with_server_limits(b, r->info) : r->info;
        if (r->info && !out->info)
            return NULL;
        out->traffic_weight = r->traffic_weight;
        add_load(b, r, out);
        model->name = r->model;
        model->versions[model->n_versions++] = out;
    }
    return model->n_versions ? model : NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns the sorted names of the loaded models, each once. */
static const char **model_names(struct builder *b, size_t *out_n)
{
    const char **names = arena_calloc(&b->arena, b->table->n_routes + 1, sizeof(*names));
    size_t n = 0, n_distinct = 0;
    if (!names)
        return NULL;
    for (size_t i = 0; i < b->table->n_routes; i++)
        if (b->table->routes[i]->loaded)
            names[n++] = b->table->routes[i]->model;
    qsort(names, n, sizeof(*names), by_name);
    for (size_t i = 0; i < n; i++)
        if (!n_distinct || strcmp(names[n_distinct - 1], names[i]) != 0)
            names[n_distinct++] = names[i];
    *out_n = n_distinct;
    return names;
}

void handle_list_models(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__ListModelsRequest *request = (const Sluice__V1__ListModelsRequest *)message;
    Sluice__V1__ListModelsResponse response = SLUICE__V1__LIST_MODELS_RESPONSE__INIT;
    const struct service *service = context;
    struct route_table *routes = replicas_routes(service->dispatch->replicas);
    struct builder b = {.dispatch = service->dispatch, .table = route_table_message(routes)};
    struct error err;
    size_t n_names = 0, i = 0;
    arena_init(&b.arena, 0, 0);
    error_clear(&err);
    size_t page = request->page_size ? request->page_size : MAX_PAGE;
    if (page > MAX_PAGE)
        error_field(&err, "page_size", "%u exceeds the limit of %d", request->page_size, MAX_PAGE);
    const char **names = model_names(&b, &n_names);
    response.models = arena_calloc(&b.arena, n_names + 1, sizeof(*response.models));
    if (!err.status && (!names || !response.models))
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "response: out of memory");
    /* A page token is the last name of the previous page, so pages stay right while models come
     * and go. */
    while (!err.status && i < n_names && request->page_token[0] &&
           strcmp(names[i], request->page_token) <= 0)
        i++;
    for (; !err.status && i < n_names && response.n_models < page; i++) {
        Sluice__V1__ServedModel *model = build_model(&b, names[i], "");
        if (model)
            response.models[response.n_models++] = model;
    }
    if (!err.status && i < n_names && response.n_models)
        response.next_page_token = (char *)(uintptr_t)names[i - 1];
    if (err.status)
        rpc_call_finish(call, &err);
    else
        rpc_call_reply(call, &response.base);
    arena_fini(&b.arena);
    route_table_release(routes);
}

void handle_get_model(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__GetModelRequest *request = (const Sluice__V1__GetModelRequest *)message;
    Sluice__V1__GetModelResponse response = SLUICE__V1__GET_MODEL_RESPONSE__INIT;
    const struct service *service = context;
    struct route_table *routes = replicas_routes(service->dispatch->replicas);
    struct builder b = {.dispatch = service->dispatch, .table = route_table_message(routes)};
    struct error err;
    const route *found;
    arena_init(&b.arena, 0, 0);
    int rc = request->model[0] ? 0 : error_field(&err, "model", "is empty");
    if (!rc)
        rc = route_table_pick(
            routes, &(struct route_wish){.model = request->model, .version = request->version},
            &found, &err);
    if (!rc)
        response.model = build_model(&b, request->model, request->version);
    if (!rc && !response.model)
        rc = error_set(&err, STATUS_RESOURCE_EXHAUSTED, "response: out of memory");
    if (rc)
        rpc_call_finish(call, &err);
    else
        rpc_call_reply(call, &response.base);
    arena_fini(&b.arena);
    route_table_release(routes);
}
