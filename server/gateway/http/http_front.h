/* http_front.h: the HTTP side of sluice-server: its listeners, who may use them, and the pages for
 * probes. The paths of the APIs come from the rooms above. HTTP is a translator: no path has a
 * function that gRPC lacks.
 *
 * Open to all callers: /health, /ping, /version, /metrics and the preflight of CORS. All other
 * paths need what an RPC needs (access.h): an API key as Authorization or x-api-key, or a client
 * certificate, where keys are configured. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/http/http_server.h"

struct access;
struct counters;
struct error;
struct gateway_limits;
struct http_front;

enum { HTTP_FRONT_MAX_LISTENERS = 8 };

struct http_front_config {
    const char *listen;  /* addresses between commas; see http_server.h */
    const char *origins; /* further origins of web pages, between commas; "*": all */
    struct access *access;
    const struct gateway_limits *limits;
    struct counters *counters;
    const struct http_route *routes; /* /metrics and the APIs */
    size_t n_routes;
    enum rpc_share share;
};

/* Listens on every address and serves. The config's pointers are borrowed until destroy.
 * *out_front is owned. Errors as http_server_create, with "--http-listen". */
int http_front_create(const struct http_front_config *config, struct http_front **out_front,
                      struct error *err);
/* New connections are refused, and the answers that run are finished. Any thread. */
void http_front_drain(struct http_front *front);
/* Returns the answers that run. Any thread. */
uint32_t http_front_n_live(const struct http_front *front);
/* Ends every answer. NULL is accepted. */
void http_front_destroy(struct http_front *front);
/* Returns the port of the first TCP address; 0: none. */
uint16_t http_front_port(const struct http_front *front);
