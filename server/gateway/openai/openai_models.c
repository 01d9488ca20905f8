#include "server/gateway/openai/openai_models.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/openai/openai_error.h"
#include "server/gateway/replicas/model_name.h"
#include "server/gateway/replicas/replicas.h"

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

/* Each model once; each version too if a model has several. */
static void write_list(const struct openai_models *models, const route **list, size_t n,
                       struct strbuf *out)
{
    strbuf_add_str(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n;) {
        size_t n_same = model_name_n_versions(list, n, i);
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
    const route **list = model_name_loaded(table, &n);
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
    struct model_name name = {.version = ""};
    struct error err;
    const route *found;
    bool is_name = model_name_read(segment, "model", &name, &err) == 0;
    wish.model = is_name ? name.model : segment; /* a malformed name is no model's */
    wish.version = name.version;
    if (route_table_pick(table, &wish, &found, &err) == 0)
        write_model(models, found, name.version, &reply.body);
    else
        openai_models_error_reply(models->dispatch, &err, true, headers, &reply);
    route_table_release(table);
    http_exchange_reply(http, &reply);
}

int openai_models_choose(struct dispatch *dispatch, const char *given, struct model_name *out_name,
                         struct error *err)
{
    struct route_table *table = replicas_routes(dispatch->replicas);
    int rc = model_name_choose(table, given && given[0] ? given : NULL, "model", out_name, err);
    if (rc && err->reason == REASON_MODEL_NOT_LOADED)
        rc = error_field(err, "model",
                         "is missing, and no model is loaded; load one with: sluice load MODEL");
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
        const route **list = model_name_loaded(table, &n);
        strbuf_printf(&text, "%s; ", err->message);
        if (list)
            model_name_write_list(list, n, &text);
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
