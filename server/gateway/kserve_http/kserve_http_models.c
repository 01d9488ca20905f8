/* Probes and metadata of KServe v2 over HTTP, from the routes. Their facts are those of gRPC
 * (kserve/kserve_models.c). */
#include <string.h>

#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/kserve/kserve_fields.h"
#include "server/gateway/kserve/kserve_models.h"
#include "server/gateway/kserve/kserve_output.h"
#include "server/gateway/kserve_http/kserve_http.h"
#include "server/gateway/replicas/model_name.h"
#include "server/gateway/replicas/replicas.h"

static const char json[] = "application/json";

void kserve_http_live(void *arg, struct http_reply *reply)
{
    (void)arg;
    (void)reply; /* an empty 200 */
}

void kserve_http_ready(void *arg, struct http_reply *reply)
{
    const struct kserve_http *context = arg;
    if (!kserve_models_server_is_ready(context->dispatch))
        reply->status = 503;
}

static const char *version_of(const struct http_request *request)
{
    return request->segments[1] ? request->segments[1] : "";
}

/* False, with the error, if the manager has no such model or version. True if this server does not
 * know the manager's models yet. */
static bool exists(struct dispatch *dispatch, const struct route_wish *wish, struct error *err)
{
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const route *found;
    bool is_known = route_table_message(routes)->generation > 0;
    int rc = route_table_pick(routes, wish, &found, err);
    route_table_release(routes);
    return !is_known || rc != STATUS_NOT_FOUND;
}

void kserve_http_model_ready(void *arg, struct http_exchange *http)
{
    const struct kserve_http *context = arg;
    const struct http_request *request = http_exchange_request(http);
    const struct route_wish wish = {.model = request->segments[0], .version = version_of(request)};
    struct http_reply reply = {.status = 503};
    struct error err;
    if (kserve_models_is_ready(context->dispatch, wish.model, wish.version))
        reply.status = 200;
    else if (!exists(context->dispatch, &wish, &err)) {
        kserve_http_refuse(http, 0, &err);
        return;
    }
    http_exchange_reply(http, &reply);
}

void kserve_http_server(void *arg, struct http_exchange *http)
{
    struct http_reply reply = {.status = 200, .content_type = json};
    (void)arg;
    strbuf_printf(&reply.body,
                  "{\"name\":\"sluice\",\"version\":\"%s\",\"extensions\":[\"generate\"]}",
                  SLUICE_VERSION);
    http_exchange_reply(http, &reply);
}

static void write_name(struct strbuf *out, const char *before, const char *name)
{
    strbuf_add_str(out, before);
    json_write_text(out, name, strlen(name));
}

static void write_tensor(struct strbuf *out, const char *name, const char *datatype, bool is_list)
{
    strbuf_printf(out, "{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":[%d]}", name, datatype,
                  is_list ? -1 : 1);
}

static void write_model(const Sluice__Manager__V1__RouteTable *table, const char *name,
                        const char *version, struct strbuf *out)
{
    struct kserve_input input;
    bool is_first = true;
    write_name(out, "{\"name\":", name);
    strbuf_add_str(out, ",\"versions\":[");
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        if (!model_name_is_loaded(r, name, version))
            continue;
        write_name(out, is_first ? "" : ",", r->version);
        is_first = false;
    }
    strbuf_add_str(out, "],\"platform\":\"sluice\",\"inputs\":[");
    for (size_t i = 0; kserve_fields_input(i, &input); i++) {
        strbuf_add_str(out, i ? "," : "");
        write_tensor(out, input.name, input.datatype, input.is_list);
    }
    strbuf_add_str(out, "],\"outputs\":[");
    for (int i = 0; i < N_KSERVE_OUTPUTS; i++) {
        strbuf_add_str(out, i ? "," : "");
        write_tensor(out, kserve_output_facts[i].name, kserve_output_facts[i].datatype, true);
    }
    strbuf_add_str(out, "]}");
}

void kserve_http_model(void *arg, struct http_exchange *http)
{
    const struct kserve_http *context = arg;
    const struct http_request *request = http_exchange_request(http);
    const struct route_wish wish = {.model = request->segments[0], .version = version_of(request)};
    struct http_reply reply = {.status = 200, .content_type = json};
    struct route_table *routes = replicas_routes(context->dispatch->replicas);
    const route *found;
    struct error err;
    int rc = route_table_pick(routes, &wish, &found, &err);
    if (!rc)
        write_model(route_table_message(routes), wish.model, wish.version, &reply.body);
    route_table_release(routes);
    if (rc)
        kserve_http_refuse(http, 0, &err);
    else
        http_exchange_reply(http, &reply);
}
