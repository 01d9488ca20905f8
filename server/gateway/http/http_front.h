/* http_front.h: the HTTP side of sluice-server: its listeners, who may use them, and the pages for
 * probes. The paths of the APIs come from the rooms above. HTTP is a translator: no path has a
 * function that gRPC lacks.
 *
 * Open to all callers: GET of / (page.h), /health, /healthz, /ping and /version, and the preflight
 * of CORS. All other paths need what an RPC needs (access.h). Where keys are configured, that is an
 * API key as Authorization or x-api-key, or a client certificate. An option opens /metrics. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/http/http_server.h"
#include "server/gateway/base/limits.h"

struct access;
struct counters;
struct error;
struct http_front;

struct http_front_config {
    const char *listen;  /* addresses between commas; see http_server.h */
    const char *grpc;    /* addresses of gRPC, for clients that come to the wrong port */
    const char *origins; /* further origins of web pages, between commas; "*": all */
    struct access *access;
    bool metrics_are_open; /* /metrics needs no key */
    const struct gateway_limits *limits;
    struct counters *counters;
    const struct http_route *routes; /* /metrics and the paths of the APIs */
    size_t n_routes;
    uint32_t keepalive_time_ms, keepalive_timeout_ms, user_timeout_ms; /* http_server.h */
    uint32_t n_threads, max_connections;                               /* for each address */
    enum rpc_share share;
};

/* Listens on every address and serves. The config's pointers are borrowed until destroy.
 * *out_front is owned. Errors as http_server_create, with "--http-listen". */
int http_front_create(const struct http_front_config *config, struct http_front **out_front,
                      struct error *err);
/* The addresses close, and the answers that run are finished. `refuses`: requests of open
 * connections get 503 DRAINING from now on. Otherwise they are served, because a successor has the
 * addresses. Any thread. */
void http_front_drain(struct http_front *front, bool refuses);
/* Ends every connection. The figures below stay readable. */
void http_front_close(struct http_front *front);
/* NULL is accepted. */
void http_front_destroy(struct http_front *front);
/* Returns the port of the first TCP address; 0: none. */
uint16_t http_front_port(struct http_front *front);

/* Return the answers that run, the open connections, and the answers with a status since the
 * start. Any thread. */
uint32_t http_front_n_live(struct http_front *front);
uint32_t http_front_n_connections(struct http_front *front);
uint64_t http_front_n_answers(struct http_front *front, unsigned status);
/* Returns the data plane's limit for a limit of an HTTP server. */
enum gateway_limit http_front_limit(enum http_limit limit);
