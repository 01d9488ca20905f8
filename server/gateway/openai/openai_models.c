#include "server/gateway/openai/openai_models.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/openai/openai_error.h"
#include "server/gateway/openai/openai_request.h"
#include "server/gateway/replicas/replicas.h"

enum { MAX_NAMES_BYTES = 360 }; /* a text with further words has its place in an error */

/* Writes a model object. `version` empty: the entry of the model itself; requests to that name get
 * a version by the traffic rule. */
static void write_model(const struct openai_models *models, const route *r, const char *version,
                        struct strbuf *out)
{
    char id[160];
    snprintf(id, sizeof(id), version[0] ? "%s:%s" : "%s", r->model, version);
    strbuf_add_str(out, "{\"id\":");
    json_write_text(out, id, strlen(id));
    strbuf_printf(out,
                  ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"sluice\",\"root\":",
                  models->created);
    json_write_text(out, r->model, strlen(r->model));
    strbuf_add_str(out, ",\"parent\":null,");
    if (r->info && r->info->context_length)
        strbuf_printf(out, "\"max_model_len\":%" PRIu32 ",\"context_length\":%" PRIu32 "}",
                      r->info->context_length, r->info->context_length);
    else
        strbuf_add_str(out, "\"max_model_len\":null,\"context_length\":null}");
}

static int by_name(const void *a, const void *b)
{
    const route *const *left = a, *const *right = b;
    int order = strcmp((*left)->model, (*right)->model);
    if (order)
        return order;
    return (*left)->sequence < (*right)->sequence ? -1 : (*left)->sequence > (*right)->sequence;
}

/* Returns the loaded routes by name, then in the order of registration. The caller frees the list.
 */
static const route **loaded_routes(const struct route_table *table, size_t *out_n)
{
    const Sluice__Manager__V1__RouteTable *message = route_table_message(table);
    const route **list = calloc(message->n_routes + 1, sizeof(route *));
    size_t n = 0;
    for (size_t i = 0; list && i < message->n_routes; i++)
        if (message->routes[i]->loaded)
            list[n++] = message->routes[i];
    if (list)
        qsort(list, n, sizeof(list[0]), by_name);
    *out_n = n;
    return list;
}

/* Returns the number of routes from i on that are of the same model. */
static size_t n_versions(const route **list, size_t n, size_t i)
{
    size_t k = i + 1;
    while (k < n && strcmp(list[k]->model, list[i]->model) == 0)
        k++;
    return k - i;
}

/* Each model once; each version too if a model has several. */
static void write_list(const struct openai_models *models, const route **list, size_t n,
                       struct strbuf *out)
{
    strbuf_add_str(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n;) {
        size_t n_same = n_versions(list, n, i);
        strbuf_add_str(out, i ? "," : "");
        write_model(models, list[i], "", out);
        for (size_t k = i; n_same > 1 && k < i + n_same; k++) {
            strbuf_add_char(out, ',');
            write_model(models, list[k], list[k]->version, out);
        }
        i += n_same;
    }
    strbuf_add_str(out, "]}\n");
}

void openai_models_list(void *arg, struct http_exchange *http)
{
    const struct openai_models *models = arg;
    struct http_reply reply = {.status = 200, .content_type = "application/json"};
    struct route_table *table = replicas_routes(models->dispatch->replicas);
    size_t n;
    const route **list = loaded_routes(table, &n);
    if (list)
        write_list(models, list, n, &reply.body);
    else
        reply.body.failed = true;
    free(list);
    route_table_release(table);
    http_exchange_reply(http, &reply);
}

void openai_models_get(void *arg, struct http_exchange *http)
{
    const struct openai_models *models = arg;
    const char *segment = http_exchange_request(http)->segments[0];
    char headers[HTTP_ERROR_HEADER_BYTES];
    struct http_reply reply = {.status = 200, .content_type = "application/json"};
    struct route_table *table = replicas_routes(models->dispatch->replicas);
    struct route_wish wish = {.model = ""};
    struct arena arena;
    struct error err;
    const route *found;
    char *model, *version;
    arena_init(&arena, 1024, 0);
    int rc = 0;
    if (!openai_request_split_model(&arena, segment, &model, &version))
        rc = error_no_memory(&err);
    if (!rc) {
        wish.model = model;
        wish.version = version;
        rc = route_table_pick(table, &wish, &found, &err);
    }
    if (!rc)
        write_model(models, found, version, &reply.body);
    else
        openai_models_error_reply(models->dispatch, &err, true, headers, &reply);
    arena_fini(&arena);
    route_table_release(table);
    http_exchange_reply(http, &reply);
}

/* Writes the models of the list, each once: "the loaded models are \"a\", \"b\" and 3 more". */
static void write_names(const route **list, size_t n, struct strbuf *out)
{
    size_t n_named = 0, n_more = 0;
    strbuf_add_str(out, n ? "the loaded models are " : "no model is loaded");
    for (size_t i = 0; i < n; i += n_versions(list, n, i)) {
        if (n_named == OPENAI_MODELS_NAMED ||
            out->n_bytes + strlen(list[i]->model) > MAX_NAMES_BYTES) {
            n_more++;
            continue;
        }
        strbuf_printf(out, "%s\"%s\"", n_named++ ? ", " : "", list[i]->model);
    }
    if (n_more)
        strbuf_printf(out, " and %zu more", n_more);
}

int openai_models_choose(struct dispatch *dispatch, const char *given, struct arena *arena,
                         const char **out_name, struct error *err)
{
    if (given && given[0]) {
        *out_name = given;
        return 0;
    }
    struct route_table *table = replicas_routes(dispatch->replicas);
    const char *name = NULL;
    struct strbuf names = {0};
    size_t n;
    int rc = 0;
    const route **list = loaded_routes(table, &n);
    if (list && n && n_versions(list, n, 0) == n) {
        name = arena_strndup(arena, list[0]->model, strlen(list[0]->model));
    } else if (list) {
        write_names(list, n, &names);
        rc = error_field(err, "model", "is missing, and %s", strbuf_str(&names));
    }
    if (name)
        *out_name = name;
    else if (!rc)
        rc = error_no_memory(err);
    strbuf_fini(&names);
    free(list);
    route_table_release(table);
    return rc;
}

void openai_models_error_reply(struct dispatch *dispatch, const struct error *err, bool is_chat,
                               char *out_headers, struct http_reply *reply)
{
    struct error named = *err;
    if (err->reason == REASON_MODEL_NOT_FOUND) {
        struct route_table *table = replicas_routes(dispatch->replicas);
        struct strbuf text = {0};
        size_t n;
        const route **list = loaded_routes(table, &n);
        strbuf_printf(&text, "%s; ", err->message);
        if (list)
            write_names(list, n, &text);
        if (list && !strbuf_failed(&text))
            snprintf(named.message, sizeof(named.message), "%s", strbuf_str(&text));
        strbuf_fini(&text);
        free(list);
        route_table_release(table);
    }
    openai_error_reply(&named, is_chat, out_headers, reply);
}

uint32_t openai_models_context(struct dispatch *dispatch, const char *model, const char *version)
{
    struct route_table *table = replicas_routes(dispatch->replicas);
    const Sluice__Manager__V1__RouteTable *message = route_table_message(table);
    uint32_t n = 0;
    for (size_t i = 0; i < message->n_routes; i++) {
        const route *r = message->routes[i];
        if (r->info && strcmp(r->model, model) == 0 && strcmp(r->version, version) == 0)
            n = r->info->context_length;
    }
    route_table_release(table);
    return n;
}

/* Without an operator's limit the most generated tokens are the context less one token. */
bool openai_models_limit_total(struct dispatch *dispatch, const char *model)
{
    struct route_table *table = replicas_routes(dispatch->replicas);
    const Sluice__Manager__V1__RouteTable *message = route_table_message(table);
    bool has_limit = false;
    for (size_t i = 0; i < message->n_routes; i++) {
        const route *r = message->routes[i];
        if (r->info && r->info->limits && strcmp(r->model, model) == 0)
            has_limit =
                has_limit || r->info->limits->max_generated_tokens + 1 < r->info->context_length;
    }
    route_table_release(table);
    return has_limit;
}
