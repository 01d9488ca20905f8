/* bench_transport.h: carries the requests of a load to a server. bench_load.c starts requests and
 * measures. A transport sends each request, and reports its events. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "clients/cli/bench/bench_prompts.h"

struct bench_slot; /* a request in flight */
struct bench_transport;
struct error;

struct bench_request {
    struct bench_prompt prompt;
    uint64_t seed;
};

/* Every function runs on the thread that runs the load. */
struct bench_transport_ops {
    const char *name;
    /* Connects for that many requests in flight, so that no handshake is measured. */
    int (*prepare)(struct bench_transport *transport, uint32_t n_requests, struct error *err);
    /* Finds a connection for the next request. Borrowed until the request's end. */
    int (*connect)(struct bench_transport *transport, void **out_connection, struct error *err);
    /* Starts a request. Its events name `slot`, and may come before this call returns. *out_call is
     * the load's until release(). */
    int (*start)(struct bench_transport *transport, void *connection,
                 const struct bench_request *request, struct bench_slot *slot, void **out_call,
                 struct error *err);
    /* Ends a request, which may have ended already. Its end is reported as usual. */
    void (*cancel)(struct bench_transport *transport, void *call);
    /* After the request's end. */
    void (*release)(struct bench_transport *transport, void *call);
    uint32_t (*n_connections)(const struct bench_transport *transport);
    /* No request runs. NULL is not accepted. */
    void (*destroy)(struct bench_transport *transport);
};

/* The first member of a transport. */
struct bench_transport {
    const struct bench_transport_ops *ops;
};

/* --- events of a request; any thread --- */

/* Tokens have come in one message. */
void bench_slot_tokens(struct bench_slot *slot, uint64_t n_tokens);
/* Tokens were part of earlier messages, but the server counts them only now. */
void bench_slot_late_tokens(struct bench_slot *slot, uint64_t n_tokens);
void bench_slot_prompt(struct bench_slot *slot, uint32_t n_tokens, uint32_t n_cached);
void bench_slot_drafts(struct bench_slot *slot, uint64_t n_drafted, uint64_t n_accepted,
                       const char *numerics_id);

struct bench_finish {
    uint64_t n_tokens; /* generated, by the server's count */
    bool is_length;    /* ended by its limit of tokens */
    bool hides_one;    /* the last token may have been counted, and not sent */
};
void bench_slot_finished(struct bench_slot *slot, const struct bench_finish *finish);
/* The last event, exactly once. */
void bench_slot_end(struct bench_slot *slot, const struct error *status);
