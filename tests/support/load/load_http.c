#include "tests/support/load/load_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/strbuf.h"

enum { READ_BYTES = 64 << 10, EVENTS_AT_ONCE = 256 };

struct load_http_connection {
    struct load_http_connection *next; /* in the group's list */
    struct load_http_connection **own; /* the owner's pointer */
    struct load_http *http;
    void *stream;
    int fd;
    struct strbuf in;
    size_t n_left;      /* bytes of the chunk that have not come, with its CRLF */
    struct strbuf text; /* decoded chunks */
    unsigned status;    /* 0: the head has not come */
    bool in_request, is_done, closes;
};

struct load_http {
    struct sockaddr_in address;
    const struct load_http_events *events;
    int epoll, stop;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* protects the list */
    struct load_http_connection *connections;
    struct load_http_part part;
};

/* --- frames --- */

static const char *after(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    return at ? at + strlen(what) : NULL;
}

/* Reads the ids of an array. The text is what this server writes, so no parser is needed. */
static void read_ids(const char *at, struct load_http_part *part)
{
    part->n_ids = 0;
    while (at && *at && *at != ']' && part->n_ids < LOAD_HTTP_MAX_IDS) {
        char *end;
        part->ids[part->n_ids++] = (uint32_t)strtoul(at, &end, 10);
        at = *end == ',' ? end + 1 : end;
        if (end == at && *end != ']')
            return;
    }
}

/* Handles "data: {...}", which ends at the NUL. False for a frame that is an error. */
static bool take_frame(struct load_http_connection *c, char *frame)
{
    struct load_http_part *part = &c->http->part;
    if (strcmp(frame, "data: [DONE]") == 0) {
        c->is_done = true;
        return true;
    }
    if (frame[0] == ':')
        return true;
    const char *choice = after(frame, "\"choices\":[{\"index\":");
    char *text = choice ? strstr(choice, "\"text\":\"") : NULL;
    if (!text)
        return false;
    part->choice = (uint32_t)strtoul(choice, NULL, 10);
    text += strlen("\"text\":\"");
    char *end = strchr(text, '"'); /* the echo's texts have no quotes */
    if (!end)
        return false;
    read_ids(after(end, "\"token_ids\":["), part);
    part->is_finished = strstr(end, "\"finish_reason\":\"") != NULL;
    *end = '\0';
    part->text = text;
    c->http->events->on_part(c->stream, part);
    return true;
}

static bool take_frames(struct load_http_connection *c)
{
    bool good = !strbuf_failed(&c->text);
    size_t at = 0;
    char *end;
    while (good && c->text.n_bytes && (end = strstr(c->text.data + at, "\n\n"))) {
        char *frame = c->text.data + at;
        *end = '\0';
        at = (size_t)(end + 2 - c->text.data);
        good = take_frame(c, frame);
    }
    strbuf_consume(&c->text, at);
    return good;
}

/* --- HTTP --- */

static bool take_head(struct load_http_connection *c)
{
    const char *end = strstr(strbuf_str(&c->in), "\r\n\r\n");
    if (!end)
        return false;
    c->status = (unsigned)strtoul(strbuf_str(&c->in) + 9, NULL, 10);
    const char *closes = strstr(strbuf_str(&c->in), "Connection: close\r\n");
    c->closes = closes && closes < end + 2;
    strbuf_consume(&c->in, (size_t)(end + 4 - c->in.data));
    if (c->status == 200)
        c->http->events->on_begin(c->stream);
    return true;
}

/* Moves chunks to the text. Returns 1 at the last chunk, 0 if more must come, -1 if broken. */
static int take_chunks(struct load_http_connection *c)
{
    for (;;) {
        if (c->n_left) {
            size_t n = c->in.n_bytes < c->n_left ? c->in.n_bytes : c->n_left;
            size_t n_data = c->n_left > 2 ? c->n_left - 2 : 0;
            strbuf_add(&c->text, strbuf_str(&c->in), n < n_data ? n : n_data);
            strbuf_consume(&c->in, n);
            c->n_left -= n;
            if (c->n_left)
                return 0;
        }
        const char *line = strbuf_str(&c->in);
        const char *end = strstr(line, "\r\n");
        if (!end)
            return 0;
        char *after_size;
        size_t size = strtoul(line, &after_size, 16);
        if (after_size != end)
            return -1;
        if (!size && c->in.n_bytes < (size_t)(end - line) + 4)
            return 0;
        strbuf_consume(&c->in, (size_t)(end - line) + (size ? 2 : 4));
        if (!size)
            return 1;
        c->n_left = size + 2;
    }
}

/* Removes the connection, and the owner's pointer to it. */
static void close_connection(struct load_http_connection *c)
{
    struct load_http *http = c->http;
    pthread_mutex_lock(&http->lock);
    struct load_http_connection **at = &http->connections;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&http->lock);
    *c->own = NULL;
    close(c->fd);
    strbuf_fini(&c->in);
    strbuf_fini(&c->text);
    free(c);
}

/* The stream is over. The connection is closed unless the answer was whole. */
static void end_stream(struct load_http_connection *c, unsigned status, const char *why)
{
    void *stream = c->stream;
    const struct load_http_events *events = c->http->events;
    c->in_request = false;
    if (status != 200 || c->closes)
        close_connection(c);
    events->on_end(stream, status, why);
}

/* Handles what has come. */
static void progress(struct load_http_connection *c, bool has_ended)
{
    char why[160] = "the connection ended early";
    int end = 0;
    if (!c->in_request)
        return;
    if (!c->status && !take_head(c)) {
        if (has_ended)
            end_stream(c, 0, why);
        return;
    }
    if (c->status != 200) {
        snprintf(why, sizeof(why), "%u: %.140s", c->status, strbuf_str(&c->in));
        end_stream(c, c->status, why);
        return;
    }
    end = take_chunks(c);
    if (!take_frames(c) || end < 0)
        end_stream(c, 0, "a frame that is not a part of the answer");
    else if (end > 0)
        end_stream(c, c->is_done ? 200 : 0, c->is_done ? "" : "a stream without [DONE]");
    else if (has_ended)
        end_stream(c, 0, why);
}

static void on_readable(struct load_http_connection *c)
{
    static _Thread_local char bytes[READ_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        strbuf_add(&c->in, bytes, (size_t)n);
    if (n <= 0 && !c->in_request) {
        close_connection(c);
        return;
    }
    progress(c, n <= 0);
}

static void *run(void *arg)
{
    struct load_http *http = arg;
    struct epoll_event events[EVENTS_AT_ONCE];
    for (;;) {
        int n = epoll_wait(http->epoll, events, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < n; i++) {
            if (!events[i].data.ptr)
                return NULL;
            on_readable(events[i].data.ptr);
        }
    }
}

/* --- life --- */

int load_http_create(const char *address, const struct load_http_events *events,
                     struct load_http **out_http, struct error *err)
{
    struct load_http *http = calloc(1, sizeof(*http));
    const char *colon = strrchr(address, ':');
    char host[64];
    if (!http)
        return error_no_memory(err);
    http->events = events;
    http->epoll = epoll_create1(EPOLL_CLOEXEC);
    http->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&http->lock, NULL);
    http->address.sin_family = AF_INET;
    snprintf(host, sizeof(host), "%.*s", colon ? (int)(colon - address) : 0, address);
    struct epoll_event stop = {.events = EPOLLIN};
    bool good = colon && inet_pton(AF_INET, host, &http->address.sin_addr) == 1;
    if (good)
        http->address.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    good = good && epoll_ctl(http->epoll, EPOLL_CTL_ADD, http->stop, &stop) == 0;
    http->has_thread = good && pthread_create(&http->thread, NULL, run, http) == 0;
    if (!http->has_thread) {
        load_http_destroy(http);
        return error_set(err, STATUS_INVALID_ARGUMENT, "cannot send load to %s", address);
    }
    *out_http = http;
    return 0;
}

static struct load_http_connection *dial(struct load_http *http, struct error *err)
{
    struct load_http_connection *c = calloc(1, sizeof(*c));
    int one = 1;
    if (!c) {
        error_no_memory(err);
        return NULL;
    }
    c->http = http;
    strbuf_init(&c->in, 0);
    strbuf_init(&c->text, 0);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 ||
        connect(c->fd, (const struct sockaddr *)&http->address, sizeof(http->address)) != 0) {
        error_errno(err, errno, "cannot connect");
        if (c->fd >= 0)
            close(c->fd);
        free(c);
        return NULL;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    pthread_mutex_lock(&http->lock);
    c->next = http->connections;
    http->connections = c;
    pthread_mutex_unlock(&http->lock);
    return c;
}

int load_http_open(struct load_http *http, struct load_http_connection **connection, void *stream,
                   const char *body, size_t n_bytes, struct error *err)
{
    struct load_http_connection *c = *connection;
    bool is_new = !c;
    struct strbuf request;
    if (is_new)
        c = dial(http, err);
    if (!c)
        return err->status;
    *connection = c;
    c->own = connection;
    c->stream = stream;
    c->status = 0;
    c->is_done = false;
    c->in_request = true;
    strbuf_init(&request, 0);
    strbuf_printf(&request,
                  "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                  n_bytes);
    strbuf_add(&request, body, n_bytes);
    ssize_t n = send(c->fd, strbuf_str(&request), request.n_bytes, MSG_NOSIGNAL);
    bool sent = n == (ssize_t)request.n_bytes;
    strbuf_fini(&request);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (sent && (!is_new || epoll_ctl(http->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0))
        return 0;
    close_connection(c);
    return error_set(err, STATUS_UNAVAILABLE, "the request was not sent");
}

void load_http_destroy(struct load_http *http)
{
    uint64_t one = 1;
    if (!http)
        return;
    if (http->has_thread) {
        (void)!write(http->stop, &one, sizeof(one));
        pthread_join(http->thread, NULL);
    }
    while (http->connections)
        close_connection(http->connections);
    close(http->epoll);
    close(http->stop);
    pthread_mutex_destroy(&http->lock);
    free(http);
}
