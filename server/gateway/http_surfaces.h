/* http_surfaces.h: the routes of all APIs that HTTP serves: a table for http_front.h. Each API has
 * a room of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proto/http/http_server.h"
#include "server/gateway/kserve_http/kserve_http.h"
#include "server/gateway/openai/openai_exchange.h"
#include "server/gateway/openai/openai_models.h"
#include "server/gateway/openai/openai_tokens.h"
#include "server/gateway/tgi/tgi_exchange.h"

struct error;
struct text_calls;

struct http_surfaces {
    struct openai_context openai;
    struct openai_models models;
    struct openai_tokens tokens;
    struct tgi_context tgi;
    struct kserve_http kserve;
    struct http_route *routes; /* owned */
    size_t n_routes;
};

struct http_surfaces_config {
    struct dispatch *dispatch;
    struct text_calls *texts;
    bool is_strict;                 /* unknown fields of a body are refused */
    const struct http_route *pages; /* further routes */
    size_t n_pages;
};

/* Makes the table, which is valid until fini. */
int http_surfaces_init(struct http_surfaces *surfaces, const struct http_surfaces_config *config,
                       struct error *err);
void http_surfaces_fini(struct http_surfaces *surfaces); /* a zeroed struct is accepted */
