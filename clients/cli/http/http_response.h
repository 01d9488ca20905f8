/* http_response.h: reads the response to an HTTP/1.1 request (RFC 9112), strictly: a response whose
 * framing is ambiguous is refused. The caller feeds bytes as they come. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "proto/http/http_chunks.h"

struct error;

enum {
    HTTP_RESPONSE_HEAD_BYTES = 64 << 10,
    HTTP_RESPONSE_HEADERS = 128,
    HTTP_RESPONSE_INTERIM = 8, /* responses with status 1xx before the final one */
};

enum http_response_state {
    HTTP_RESPONSE_IN_HEAD,
    HTTP_RESPONSE_IN_LENGTH, /* body of n_left bytes */
    HTTP_RESPONSE_IN_CHUNKS,
    HTTP_RESPONSE_TO_END, /* the body ends with the connection */
    HTTP_RESPONSE_OVER,
};

/* A zeroed struct reads the response to a request other than HEAD. */
struct http_response {
    enum http_response_state state;
    unsigned status;       /* 0: the head has not come */
    bool keeps_open;       /* another request may follow on the connection */
    char content_type[64]; /* without parameters, lower case */
    char location[256];
    struct strbuf head; /* owned */
    size_t n_scanned;
    uint64_t n_left;
    struct http_chunks chunks;
    unsigned n_interim;
};

void http_response_fini(struct http_response *response);
/* Prepares for the response to the next request on the connection. */
void http_response_reset(struct http_response *response);

/* Reads bytes up to the end of the response, and appends the body's bytes to `body`. *out_used is
 * the number of bytes that belong to the response. DATA_LOSS for broken framing, with the rule;
 * RESOURCE_EXHAUSTED for a head or a body above its limit; UNAVAILABLE (GRPC_PORT) for HTTP/2. */
int http_response_feed(struct http_response *response, const char *bytes, size_t n_bytes,
                       size_t *out_used, struct strbuf *body, struct error *err);

/* The peer has closed the connection. DATA_LOSS if the response was not complete. */
int http_response_close(struct http_response *response, struct error *err);
