#include "server/gateway/http_surfaces.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/page/page.h"
#include "server/gateway/tgi/tgi_error.h"

#define AT(member) offsetof(struct http_surfaces, member)

/* Paths of OpenAI's and Anthropic's APIs that clients ask for. */
static void refuse_not_built(void *arg, struct http_exchange *http)
{
    const char *path = http_exchange_request(http)->head.path;
    char headers[HTTP_ERROR_HEADER_BYTES];
    struct http_reply reply = {0};
    struct error err;
    (void)arg;
    error_set(&err, STATUS_UNIMPLEMENTED,
              "%s is not built; use /v1/chat/completions or /v1/completions", path);
    error_reason(&err, REASON_NOT_BUILT);
    http_error_reply(&err, headers, &reply);
    reply.status = 404; /* as for every path that has no API */
    http_exchange_reply(http, &reply);
}

/* The paths of the APIs, each with the place of its handler's argument. Refusals before a handler
 * have OpenAI's form, unless the API has its own. */
static const struct {
    const char *path;
    http_handler_fn *handle;
    size_t at;
    unsigned methods;
    http_refusal_fn *refuse;
} apis[] = {
    {"/v1/chat/completions", openai_exchange_chat, AT(openai), HTTP_POST, NULL},
    {"/v1/completions", openai_exchange_completions, AT(openai), HTTP_POST, NULL},
    {"/v1/models", openai_models_list, AT(models), HTTP_GET, NULL},
    {"/models", openai_models_list, AT(models), HTTP_GET, NULL},
    {"/v1/models/{}", openai_models_get, AT(models), HTTP_GET, NULL},
    {"/models/{}", openai_models_get, AT(models), HTTP_GET, NULL},
    {"/v1/embeddings", refuse_not_built, 0, HTTP_GET | HTTP_POST, NULL},
    {"/v1/responses", refuse_not_built, 0, HTTP_GET | HTTP_POST, NULL},
    {"/v1/messages", refuse_not_built, 0, HTTP_GET | HTTP_POST, NULL},
    {"/tokenize", openai_tokens_encode, AT(tokens), HTTP_POST, NULL},
    {"/detokenize", openai_tokens_decode, AT(tokens), HTTP_POST, NULL},
    {"/", tgi_exchange_compat, AT(tgi), HTTP_POST, tgi_error_reply},
    {"/generate", tgi_exchange_generate, AT(tgi), HTTP_POST, tgi_error_reply},
    {"/generate_stream", tgi_exchange_stream, AT(tgi), HTTP_POST, tgi_error_reply},
    {"/info", tgi_exchange_info, AT(tgi), HTTP_GET, tgi_error_reply},
    {"/v2", kserve_http_server, AT(kserve), HTTP_GET, kserve_http_error},
    {"/v2/models/{}", kserve_http_model, AT(kserve), HTTP_GET, kserve_http_error},
    {"/v2/models/{}/versions/{}", kserve_http_model, AT(kserve), HTTP_GET, kserve_http_error},
    {"/v2/models/{}/ready", kserve_http_model_ready, AT(kserve), HTTP_GET, kserve_http_error},
    {"/v2/models/{}/versions/{}/ready", kserve_http_model_ready, AT(kserve), HTTP_GET,
     kserve_http_error},
    {"/v2/models/{}/infer", kserve_http_infer, AT(kserve), HTTP_POST, kserve_http_error},
    {"/v2/models/{}/versions/{}/infer", kserve_http_infer, AT(kserve), HTTP_POST,
     kserve_http_error},
    {"/v2/models/{}/generate", kserve_http_generate, AT(kserve), HTTP_POST, kserve_http_error},
    {"/v2/models/{}/versions/{}/generate", kserve_http_generate, AT(kserve), HTTP_POST,
     kserve_http_error},
    {"/v2/models/{}/generate_stream", kserve_http_generate_stream, AT(kserve), HTTP_POST,
     kserve_http_error},
    {"/v2/models/{}/versions/{}/generate_stream", kserve_http_generate_stream, AT(kserve),
     HTTP_POST, kserve_http_error},
};

/* Pages, which need no key, and their arguments. */
static const struct {
    const char *path;
    http_page_fn *page;
    size_t at;
} pages[] = {
    {"/", page_reply, 0},
    {"/v2/health/live", kserve_http_live, AT(kserve)},
    {"/v2/health/ready", kserve_http_ready, AT(kserve)},
};

enum { N_APIS = sizeof(apis) / sizeof(apis[0]), N_PAGES = sizeof(pages) / sizeof(pages[0]) };

/* Appends a route to the table, which has room. */
static void add(struct http_surfaces *surfaces, const struct http_route *route)
{
    surfaces->routes[surfaces->n_routes++] = *route;
}

int http_surfaces_init(struct http_surfaces *surfaces, const struct http_surfaces_config *config,
                       struct error *err)
{
    char *base = (char *)surfaces;
    *surfaces = (struct http_surfaces){
        .openai = {.dispatch = config->dispatch, .is_strict = config->is_strict},
        .models = {.dispatch = config->dispatch, .created = clock_wall_ns() / NS_PER_S},
        .tokens = {.dispatch = config->dispatch,
                   .calls = config->texts,
                   .is_strict = config->is_strict},
        .tgi = {.dispatch = config->dispatch, .is_strict = config->is_strict},
        .kserve = {.dispatch = config->dispatch, .is_strict = config->is_strict}};
    surfaces->routes = calloc(config->n_pages + N_PAGES + N_APIS, sizeof(*surfaces->routes));
    if (!surfaces->routes)
        return error_no_memory(err);
    for (size_t i = 0; i < config->n_pages; i++)
        add(surfaces, &config->pages[i]);
    for (size_t i = 0; i < N_PAGES; i++)
        add(surfaces, &(struct http_route){
                          .path = pages[i].path, .page = pages[i].page, .arg = base + pages[i].at});
    for (size_t i = 0; i < N_APIS; i++)
        add(surfaces, &(struct http_route){.path = apis[i].path,
                                           .handle = apis[i].handle,
                                           .arg = base + apis[i].at,
                                           .methods = apis[i].methods,
                                           .refuse = apis[i].refuse});
    return 0;
}

void http_surfaces_fini(struct http_surfaces *surfaces)
{
    free(surfaces->routes);
    *surfaces = (struct http_surfaces){0};
}
