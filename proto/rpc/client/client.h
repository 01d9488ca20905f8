/* client.h: a channel to one server and the calls on it. Any thread, unless said otherwise.
 * Reconnecting is gRPC's work; starting a lost call again is the caller's.
 *
 * Errors of every call: the server's status with its field, reason and retry time (status.h);
 * UNAVAILABLE at once where nothing listens (unless wait_for_ready); DEADLINE_EXCEEDED; CANCELLED.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct error;
struct rpc_client;
struct rpc_stream;

struct rpc_client_config {
    /* "unix:PATH", "127.0.0.1:8001", "dns:///host:port". PATH is a path, not a URI: every character
     * stands for itself. */
    const char *target;
    size_t max_message_bytes;
    size_t max_pending_bytes; /* queued to send per stream */
    uint32_t keepalive_time_ms, keepalive_timeout_ms;
    uint32_t reconnect_min_ms, reconnect_max_ms; /* backoff between attempts to connect */
    uint32_t connect_timeout_ms; /* one attempt, until the server's HTTP/2 settings are there */
    /* Who is at the other end, and who is here. Read by create. */
    bool tls;
    const char *tls_ca;                           /* PEM file; NULL or empty: the system's CAs */
    const char *tls_client_cert, *tls_client_key; /* PEM files, both or neither (NULL or empty) */
    const char *server_name; /* that its certificate must have; NULL or empty: the target's host */
    const char *api_key;     /* goes with every call; NULL or empty: none */
    /* gRPC service config as JSON: which calls core repeats before their first answer. NULL or
     * empty: none; what calls mean is then the caller's alone to judge. */
    const char *service_config;
};

/* 4 MiB; 1 MiB pending; 60 s / 20 s; 100 ms to 1 s; 10 s. */
void rpc_client_config_init(struct rpc_client_config *config);

/* Connects lazily. *out_client is owned; it has one thread for callbacks. INVALID_ARGUMENT for a
 * target that cannot be one, for TLS files that are bad, and for a key that cannot travel in
 * metadata. */
int rpc_client_create(const struct rpc_client_config *config, struct rpc_client **out_client,
                      struct error *err);

/* Cancels every call, waits for the last callback. Not from a callback. NULL is accepted. */
void rpc_client_destroy(struct rpc_client *client);

/* Tries to connect at once where an attempt has failed and another is due later; for callers with
 * waits of their own. gRPC's goes by the wall clock: set back by a day, it is a day longer. */
void rpc_client_connect_now(struct rpc_client *client);

/* Waits until the channel is connected. UNAVAILABLE, naming the target, after timeout_ms. */
int rpc_client_wait_connected(struct rpc_client *client, uint32_t timeout_ms, struct error *err);

struct rpc_metadata {
    const char *key, *value; /* ASCII */
};

/* How one call is made; NULL stands for all zero. */
struct rpc_call_options {
    uint64_t timeout_ms; /* 0: none */
    int64_t deadline_ns; /* clock_now_ns() based; 0: none; the earlier of the two counts */
    bool wait_for_ready; /* wait for a connection instead of failing at once */
    const struct rpc_metadata *metadata; /* borrowed for the call of the function */
    size_t n_metadata;
};

/* A unary call, answered before it returns. Not from a callback. *out_response is owned
 * (rpc_message_free). */
int rpc_client_unary(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                     const char *method, const ProtobufCMessage *request,
                     const struct rpc_call_options *options, ProtobufCMessage **out_response,
                     struct error *err);

/* The answer of an asynchronous unary call, exactly once, on the client's thread. `response` is
 * borrowed for the callback and NULL where status->status is not 0. */
typedef void rpc_reply_fn(void *arg, const ProtobufCMessage *response, const struct error *status);

/* Starts a unary call. On a negative return `on_reply` will not be called. */
int rpc_client_unary_async(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                           const char *method, const ProtobufCMessage *request,
                           const struct rpc_call_options *options, rpc_reply_fn *on_reply,
                           void *arg, struct error *err);
/* The same for a call that may be given up: *out_stream is owned (rpc_stream_release) and is for
 * rpc_stream_cancel, after which on_reply says CANCELLED unless the answer was there. Set before
 * on_reply is called; dropped before that, it cancels. */
int rpc_client_unary_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                          const char *method, const ProtobufCMessage *request,
                          const struct rpc_call_options *options, rpc_reply_fn *on_reply, void *arg,
                          struct rpc_stream **out_stream, struct error *err);
