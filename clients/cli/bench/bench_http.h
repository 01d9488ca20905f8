/* bench_http.h: carries the requests of a load over HTTP, to any server with OpenAI's API
 * (bench_transport.h). All connections are on the event loop of a thread of its own. */
#pragma once

#include <stdbool.h>

struct bench_load_config;
struct bench_transport;
struct error;
struct http_target;

struct bench_http_config {
    const struct bench_load_config *load;
    const struct http_target *target;
    bool is_llama_cpp; /* the server counts tokens in another field */
};

/* The config is borrowed until destroy. *out_transport is owned (ops->destroy).
 *
 * The usage in each chunk counts the tokens if the server sends it. Else each chunk with text is a
 * token. The usage at the end has to agree; tokens above the count are counted then. */
int bench_http_create(const struct bench_http_config *config,
                      struct bench_transport **out_transport, struct error *err);
