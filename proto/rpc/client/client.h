/* client.h: a channel to a server and the calls on it. Any thread, unless said otherwise. gRPC
 * reconnects; a caller starts a lost call again itself.
 *
 * Errors of every call: the server's status with field, reason and retry time (status.h),
 * DEADLINE_EXCEEDED or CANCELLED. UNAVAILABLE at once if nothing listens (unless
 * wait_for_ready). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/reason.h"

struct error;
struct rpc_client;
struct rpc_stream;

struct rpc_client_config {
    /* "unix:PATH", "127.0.0.1:8001", "dns:///host:port". PATH is a path, not a URI: no character
     * has a special meaning. */
    const char *target;
    size_t max_message_bytes;
    size_t max_pending_bytes; /* unsent bytes of a stream */
    uint32_t keepalive_time_ms, keepalive_timeout_ms;
    uint32_t reconnect_min_ms, reconnect_max_ms; /* backoff between attempts to connect */
    uint32_t connect_timeout_ms; /* time of an attempt, until the server's HTTP/2 settings arrive */
    /* identity of the server and of this client; read by create */
    bool tls;
    const char *tls_ca;                           /* PEM file; NULL or empty: the system's CAs */
    const char *tls_client_cert, *tls_client_key; /* PEM files, both or neither (NULL or empty) */
    const char *server_name; /* name that the server's certificate must have; NULL or empty: the
                              * target's host */
    const char *api_key;     /* sent with every call; NULL or empty: none */
    /* gRPC service config as JSON: the calls that gRPC may retry before their first answer. NULL
     * or empty: no retries, because only the caller knows which calls may be repeated. */
    const char *service_config;
};

/* Sets the defaults: messages 4 MiB; pending 1 MiB; keepalive 60 s and 20 s; reconnect 100 ms to
 * 1 s; connect 10 s. */
void rpc_client_config_init(struct rpc_client_config *config);

/* Connects lazily. *out_client is owned; one thread runs its callbacks. INVALID_ARGUMENT for an
 * invalid target, bad TLS files, or a key that metadata cannot carry. */
int rpc_client_create(const struct rpc_client_config *config, struct rpc_client **out_client,
                      struct error *err);

/* Cancels every call, waits for the last callback. Not from a callback. NULL is accepted. */
void rpc_client_destroy(struct rpc_client *client);

/* Connects at once if an attempt has failed and gRPC waits before the next. For callers with
 * their own waits. The wait of gRPC uses the wall clock: if that is set back by a day, the wait
 * is a day longer. */
void rpc_client_connect_now(struct rpc_client *client);

/* Waits until the channel is connected. After timeout_ms: UNAVAILABLE with the target. */
int rpc_client_wait_connected(struct rpc_client *client, uint32_t timeout_ms, struct error *err);

/* The reason in gRPC core's text of a failed connection: REASON_PEER_WITHOUT_TLS and the like.
 * NONE for another text. For errors UNAVAILABLE without a reason. */
enum reason rpc_client_connection_reason(const struct error *err);

struct rpc_metadata {
    const char *key, *value; /* ASCII */
};

/* Options of a call; NULL means all zero. */
struct rpc_call_options {
    uint64_t timeout_ms; /* 0: no time-out */
    int64_t deadline_ns; /* clock_now_ns() based; 0: none; the earlier of deadline and time-out
                          * counts */
    bool wait_for_ready; /* wait for a connection instead of failing at once */
    const struct rpc_metadata *metadata; /* borrowed until the function returns */
    size_t n_metadata;
};

/* A synchronous unary call. Not from a callback. *out_response is owned (rpc_message_free). */
int rpc_client_unary(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                     const char *method, const ProtobufCMessage *request,
                     const struct rpc_call_options *options, ProtobufCMessage **out_response,
                     struct error *err);

/* Result of an asynchronous unary call, exactly once, on the client's thread. `response` is
 * borrowed for the callback, and NULL if status->status is not 0. */
typedef void rpc_reply_fn(void *arg, const ProtobufCMessage *response, const struct error *status);

/* Starts a unary call. After a negative return `on_reply` is not called. */
int rpc_client_unary_async(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                           const char *method, const ProtobufCMessage *request,
                           const struct rpc_call_options *options, rpc_reply_fn *on_reply,
                           void *arg, struct error *err);
/* The same for a call that may be cancelled. *out_stream is owned (rpc_stream_release) and is
 * for rpc_stream_cancel. After a cancel, on_reply gets CANCELLED unless the answer has arrived.
 * *out_stream is set before on_reply is called; releasing it before on_reply cancels the call. */
int rpc_client_unary_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                          const char *method, const ProtobufCMessage *request,
                          const struct rpc_call_options *options, rpc_reply_fn *on_reply, void *arg,
                          struct rpc_stream **out_stream, struct error *err);
