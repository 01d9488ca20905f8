#include "server/gateway/http_surfaces.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/page/page.h"

/* Appends routes to the table, which has room. */
static void add(struct http_surfaces *surfaces, const struct http_route *routes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        surfaces->routes[surfaces->n_routes++] = routes[i];
}

int http_surfaces_init(struct http_surfaces *surfaces, const struct http_surfaces_config *config,
                       struct error *err)
{
    const struct http_route openai[] = {
        {.path = "/v1/chat/completions",
         .handle = openai_exchange_chat,
         .arg = &surfaces->openai,
         .methods = HTTP_POST},
        {.path = "/v1/completions",
         .handle = openai_exchange_completions,
         .arg = &surfaces->openai,
         .methods = HTTP_POST},
        {.path = "/v1/models",
         .handle = openai_models_list,
         .arg = &surfaces->models,
         .methods = HTTP_GET},
        {.path = "/models",
         .handle = openai_models_list,
         .arg = &surfaces->models,
         .methods = HTTP_GET},
        {.path = "/v1/models/{}",
         .handle = openai_models_get,
         .arg = &surfaces->models,
         .methods = HTTP_GET},
        {.path = "/models/{}",
         .handle = openai_models_get,
         .arg = &surfaces->models,
         .methods = HTTP_GET},
        {.path = "/tokenize",
         .handle = openai_tokens_encode,
         .arg = &surfaces->tokens,
         .methods = HTTP_POST},
        {.path = "/detokenize",
         .handle = openai_tokens_decode,
         .arg = &surfaces->tokens,
         .methods = HTTP_POST},
    };
    const struct http_route tgi[] = {
        {.path = "/", .handle = tgi_exchange_compat, .arg = &surfaces->tgi, .methods = HTTP_POST},
        {.path = "/generate",
         .handle = tgi_exchange_generate,
         .arg = &surfaces->tgi,
         .methods = HTTP_POST},
        {.path = "/generate_stream",
         .handle = tgi_exchange_stream,
         .arg = &surfaces->tgi,
         .methods = HTTP_POST},
        {.path = "/info", .handle = tgi_exchange_info, .arg = &surfaces->tgi, .methods = HTTP_GET},
    };
    const struct http_route page = {.path = "/", .page = page_reply};
    size_t n_openai = sizeof(openai) / sizeof(openai[0]);
    size_t n_tgi = sizeof(tgi) / sizeof(tgi[0]);
    *surfaces = (struct http_surfaces){
        .openai = {.dispatch = config->dispatch, .is_strict = config->is_strict},
        .models = {.dispatch = config->dispatch, .created = clock_wall_ns() / NS_PER_S},
        .tokens = {.dispatch = config->dispatch,
                   .calls = config->texts,
                   .is_strict = config->is_strict},
        .tgi = {.dispatch = config->dispatch, .is_strict = config->is_strict}};
    surfaces->routes = calloc(config->n_pages + 1 + n_openai + n_tgi, sizeof(*surfaces->routes));
    if (!surfaces->routes)
        return error_no_memory(err);
    add(surfaces, config->pages, config->n_pages);
    add(surfaces, &page, 1);
    add(surfaces, openai, n_openai);
    add(surfaces, tgi, n_tgi);
    return 0;
}

void http_surfaces_fini(struct http_surfaces *surfaces)
{
    free(surfaces->routes);
    *surfaces = (struct http_surfaces){0};
}
