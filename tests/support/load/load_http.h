/* load_http.h: streams of /v1/completions for the load client. Each stream has a TCP connection of
 * its own, which its later requests use again. A thread with an epoll serves the streams of a
 * group. The callbacks run on that thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct load_http;

enum { LOAD_HTTP_MAX_IDS = 1024 };

/* A chunk of a choice, or the end of a choice. */
struct load_http_part {
    uint32_t choice;
    uint32_t ids[LOAD_HTTP_MAX_IDS];
    size_t n_ids;
    const char *text; /* NUL-terminated */
    int is_finished;
};

struct load_http_events {
    void (*on_begin)(void *stream); /* the status line with 200 */
    void (*on_part)(void *stream, const struct load_http_part *part);
    /* The end: `status` is 200 for a whole stream. 0: the connection ended early. */
    void (*on_end)(void *stream, unsigned status, const char *why);
};

/* `address`: "127.0.0.1:PORT". `events` is borrowed until destroy. *out_http is owned. */
int load_http_create(const char *address, const struct load_http_events *events,
                     struct load_http **out_http, struct error *err);
/* Sends a request with this JSON body for the stream. *connection is the stream's own; NULL at
 * first, and after an early end. From the thread of the callbacks, or before any callback of this
 * stream. */
struct load_http_connection;
int load_http_open(struct load_http *http, struct load_http_connection **connection, void *stream,
                   const char *body, size_t n_bytes, struct error *err);
/* Closes all connections without a callback. NULL is accepted. */
void load_http_destroy(struct load_http *http);
