/* http_generation.h: the generations of one HTTP request: a relay for each prompt, and what any API
 * needs to answer from them. An API (OpenAI's, TGI's) differs only in its table of functions.
 *
 * The status line of a stream is held back until the first text, so that a refusal keeps its
 * status. A stream that is silent for ping_ms begins all the same, and gets a comment line: proxies
 * cut silent connections. If the client leaves, every generation is cancelled. If a prompt fails,
 * the others are cancelled, and the first error is the answer.
 *
 * All functions run on the loop's thread of the exchange. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/http/http_server.h"
#include "server/gateway/relay/relay_sink.h"
#include "sluice/v1/inference.pb-c.h"

struct dispatch;
struct error;
struct http_exchange;
struct http_reply;
struct strbuf;

enum { HTTP_GENERATION_PING_MS = 15000, HTTP_GENERATION_HEADER_BYTES = HTTP_REFUSAL_HEADER_BYTES };

/* How an API writes its answers. `surface` is the API's own state of the request. */
struct http_generation_ops {
    const char *name;
    /* A frame of prompt number i_prompt. A stream has PROMPT_INFO, TOKENS and FINISHED frames, and
     * what is appended to `out` goes to the client. Another answer has one WHOLE frame for each
     * prompt, and `out` is NULL. The frame's `last` and `error` are not for this function. Runs
     * under the relay's lock. */
    void (*frame)(void *surface, size_t i_prompt, const struct relay_frame *frame,
                  struct strbuf *out);
    /* Optional: every frame that is ready was written. */
    void (*flush)(void *surface, struct strbuf *out);
    /* The end of a stream whose prompts all ended well. */
    void (*end)(void *surface, struct strbuf *out);
    /* The end of a stream that failed after its first text. */
    void (*fail)(void *surface, const struct error *err, struct strbuf *out);
    /* Sets the body of the whole answer. `reply` is a 200 of JSON: sets the content type if the
     * body is no JSON. */
    void (*whole)(void *surface, struct http_reply *reply);
    /* Fills the answer to a request that failed before the status line was sent: status, body and
     * header lines. out_headers has HTTP_GENERATION_HEADER_BYTES. */
    void (*refuse)(void *surface, const struct error *err, char *out_headers,
                   struct http_reply *reply);
    /* Optional: a prompt failed before any text was sent. Returns a request to try in its place, or
     * NULL. The request is borrowed until the next call of this table. `headers` are the header
     * lines of the answer, HTTP_GENERATION_HEADER_BYTES; the function may add to them. */
    const Sluice__V1__GenerateRequest *(*again)(void *surface, size_t i_prompt,
                                                const struct error *err, char *headers);
    /* Frees the surface. Any thread. */
    void (*destroy)(void *surface);
};

struct http_generation_config {
    struct dispatch *dispatch;
    const struct http_generation_ops *ops;
    void *surface;
    /* Returns the request for prompt number i; borrowed until the next call. */
    const Sluice__V1__GenerateRequest *(*prompt)(void *surface, size_t i);
    size_t n_prompts;
    bool streams;
    const char *headers; /* lines of a 200, each with its CRLF; NULL: none. Copied */
    uint32_t ping_ms;    /* 0: HTTP_GENERATION_PING_MS */
};

/* In the handler of an exchange: opens a generation for each prompt, and lets them answer. On
 * success takes the surface. On an error nothing runs, and the caller answers. */
int http_generation_begin(struct http_exchange *http, const struct http_generation_config *config,
                          struct error *err);
