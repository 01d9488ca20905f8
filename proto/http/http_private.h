/* http_private.h: the structs that the files of the server share. Private to proto/http. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <ev.h>

#include "base/hash_map.h"
#include "proto/http/http_chunks.h"
#include "proto/http/http_exchange.h"
#include "proto/http/http_server.h"

struct http_connection;
struct http_loop;
struct http_tls;
struct ssl_st;

struct http_exchange {
    _Atomic uint32_t n_refs;
    atomic_bool kicked;              /* in the loop's list of kicks */
    struct http_exchange *next_kick; /* under the loop's lock */
    struct http_loop *loop;
    struct http_connection *connection; /* NULL when the exchange is over; loop's thread */
    const struct http_exchange_events *events;
    void *arg;
    struct http_request *request;   /* owned; freed after the handler */
    const struct http_route *route; /* see http_exchange_route */
    char *memory;                   /* owned: the bytes of head and body */
    char *path;                     /* owned copy whose slashes became NULs, for the segments */
    bool is_head, is_1_0, keeps_open;
    bool has_begun, is_over; /* the status, and the last byte, are in the output */
    bool is_chunked;
    bool rests;     /* the part was all that is ready; see http_out_rest */
    bool is_silent; /* the next call of `next` is due to silence */
    atomic_bool aborted;
    uint32_t wake_ms;      /* see http_exchange_wake_after; 0: never */
    struct strbuf headers; /* added by http_exchange_add_header */
};

/* The argument of `next`. */
struct http_out {
    struct http_exchange *exchange;
    struct strbuf *draft; /* the body's part */
    bool has_put, finishes, rests, is_silent;
};

/* The address of a client. */
struct http_peer {
    uint8_t n_bytes; /* 4, 16; 0: a unix socket */
    uint8_t bytes[16];
    uint16_t port;
};

enum http_phase {
    HTTP_HANDSHAKE,
    HTTP_IDLE, /* no byte of the next request has come */
    HTTP_IN_HEAD,
    HTTP_IN_BODY,
    HTTP_ANSWERING,
    HTTP_LINGERS, /* the answer is sent; what comes is dropped until the client closes */
    HTTP_DEAD,    /* freed at the end of the running callback */
};

struct http_connection {
    struct http_loop *loop;
    struct http_connection *next, **at;
    int fd;
    struct ssl_st *ssl; /* NULL: plain text */
    ev_io reader, writer;
    enum http_phase phase;
    int64_t since_ns; /* begin of the phase; ANSWERING: when the unsent bytes last moved */
    struct strbuf in, out;
    size_t n_scanned; /* see http_head_find_end */
    size_t n_sent;    /* bytes of `out` that were sent */
    struct http_chunks chunks;
    struct strbuf body;
    struct http_exchange *exchange;
    uint32_t n_requests;
    bool closes;    /* no further request after this answer */
    bool is_cut;    /* the answer was aborted: the client must see that */
    bool drops;     /* too many bytes came ahead; what follows is dropped */
    bool has_ended; /* the client has closed its sending half */
    bool yields;    /* requests wait in `in` for the loop's next turn, which the writer brings */
    struct http_peer peer;
};

/* A loop with its thread. Connections stay on one loop. */
struct http_loop {
    struct http_server *server;
    struct ev_loop *ev;
    pthread_t thread;
    bool has_thread, is_watching;
    ev_async wake;
    ev_timer sweep;
    ev_check tick;
    int64_t now_ns; /* clock_now_ns() when the loop's turn began */
    struct http_connection *connections;
    char *scratch;       /* HTTP_SCRATCH_BYTES for reads */
    struct strbuf draft; /* output of `next` */
    struct strbuf spare; /* empty memory for the output of a connection that has none */
    pthread_mutex_t lock;
    /* under the lock: the fields up to `drains`, and is_closed */
    struct http_exchange *kicks, **last_kick;
    struct http_connection *accepted; /* list by `next`: to be started by this loop */
    bool stops, drains;
    bool is_draining; /* the loop's own copy of `drains` */
    bool is_closed;   /* `ev` is gone: a kick does nothing */
};

enum { HTTP_SCRATCH_BYTES = 64 << 10, HTTP_SWEEP_MS = 250, HTTP_LINGER_MS = 1000 };
enum { HTTP_MAX_TURN = 16 };          /* requests of a connection in one turn of its loop */
enum { HTTP_SPARE_BYTES = 64 << 10 }; /* more memory is freed */
enum { HTTP_DRAIN_MS = 1000 };        /* time for a last request of an idle connection */

/* Exchanges hold references, because their owners may kick them after the server's end. */
struct http_server {
    _Atomic uint32_t n_refs;
    struct http_server_config config;
    struct http_tls *tls;
    struct http_loop *loops;
    uint32_t n_loops, next_loop;
    int listen_fd;   /* -1: closed */
    char *unix_path; /* owned; NULL for TCP */
    uint16_t port;
    ev_io acceptor; /* on the first loop */
    ev_timer pause;
    pthread_mutex_t tls_lock;
    pthread_mutex_t peers_lock;
    struct hash_map peers; /* under its lock: address to its number of connections */
    _Atomic uint32_t n_connections, n_live;
    _Atomic uint64_t n_limits[N_HTTP_LIMITS];
    _Atomic uint64_t n_answers[HTTP_MAX_STATUS + 1]; /* by status */
};

/* http_io.c; on the loop's thread. LATER: the socket is not ready; with TLS the writer may be
 * armed. READ_FIRST: TLS sends nothing before more bytes of the client come. PLAIN: a client
 * without TLS begins a request. */
enum http_io {
    HTTP_IO_DONE,
    HTTP_IO_LATER,
    HTTP_IO_READ_FIRST,
    HTTP_IO_ENDED,
    HTTP_IO_FAILED,
    HTTP_IO_PLAIN
};
/* Reads into the loop's scratch. */
enum http_io http_io_receive(struct http_connection *connection, size_t *out_n);
/* Sends a part of the output. */
enum http_io http_io_transmit(struct http_connection *connection, size_t *out_n);
enum http_io http_io_shake(struct http_connection *connection);
/* Options of a TCP socket. */
void http_io_set_options(int fd, const struct http_server_config *config);

/* http_connection.c; all but the first on the loop's thread. */
/* Takes the descriptor of a new client. NULL if memory is exhausted. */
struct http_connection *http_connection_create(struct http_loop *loop, int fd,
                                               const struct http_peer *peer);
/* The loop serves the connection from now on. */
void http_connection_start(struct http_connection *connection);
/* The connection is closed at the end of the running callback. */
void http_connection_end(struct http_connection *connection);
/* Frees the connection; a running exchange is gone. */
void http_connection_destroy(struct http_connection *connection);
/* A kick: calls `next` and sends what it put, or cuts an aborted answer off. */
void http_connection_on_kick(struct http_connection *connection);
/* Ends the connection if its phase has lasted too long; looks for clients that left. */
void http_connection_sweep(struct http_connection *connection);
/* The server drains: one further request at most. */
void http_connection_drain(struct http_connection *connection);

/* http_request.c; on the loop's thread. The phase says what to read. */
/* Reads the head. False if more bytes are needed. */
bool http_request_read_head(struct http_connection *connection);
/* Moves received bytes to the body. False if more bytes are needed. */
bool http_request_read_body(struct http_connection *connection);
/* Refuses the body if the budget has no room for it. True if it was refused. */
bool http_request_check_budget(struct http_connection *connection);
/* Refuses the request that comes, also before its head is complete. */
void http_request_refuse(struct http_connection *connection, unsigned status, const char *why);

/* http_server.c; any thread. */
void http_server_release(struct http_server *server);
/* Counts a refusal or an end, for metrics and for the owner. */
void http_server_count(struct http_server *server, enum http_limit limit);
/* A connection is closed, or could not be made. */
void http_server_forget(struct http_server *server, const struct http_peer *peer);

/* http_answer.c: writes answers into the connection's output. */
/* Frees the body, which the budget gets back. */
void http_answer_forget_body(struct http_connection *connection);
/* Refuses a request, and lets the connection close. */
void http_answer_refuse(struct http_connection *connection, unsigned status, const char *why);
/* Refuses a body for which the budget has no room. */
void http_answer_refuse_budget(struct http_connection *connection);
/* Checks a parsed head: route, method, length. True if the request is answered already. */
bool http_answer_head(struct http_connection *connection);
/* The request is complete: calls the handler. */
void http_answer_request(struct http_connection *connection);
/* Lets `next` write a part of the answer. True if it put something. */
bool http_answer_next(struct http_connection *connection);
