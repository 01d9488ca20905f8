/* support_gateway.h: the real gateway between a fake manager, fake workers and a client that
 * checks its messages. All use real unix sockets in the test's own folder. Functions assert. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/gateway.h"
#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/v1/inference.pb-c.h"
#include "tests/unit/gateway/support/support_worker.h"

struct rpc_call;
struct rpc_client;
struct rpc_stream;

enum { FIXTURE_WORKERS = 4, FIXTURE_ROUTES = 10, STREAM_MAX_CHOICES = 8 };

/* Serves Routing.WatchRoutes: sends the last table at once, and each new table. */
struct fake_manager {
    char socket[108];
    struct rpc_server *server; /* NULL while the manager is away */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct watcher *watchers;
    _Atomic unsigned n_watches;    /* WatchRoutes calls so far */
    _Atomic unsigned n_wakes;      /* WakeVersion calls so far */
    _Atomic bool refuses_wakes;    /* refuses as if there were no room */
    _Atomic(const char *) refusal; /* refuses with this text and no reason */
    void *table;                   /* the packed message */
    size_t n_table;
    _Atomic uint64_t known_generation; /* generation in the last watch request */
};

/* A row of the table: a version and its workers. */
struct fixture_route {
    const char *model, *version;
    bool loaded;
    unsigned workers;  /* bit i: worker i, state READY */
    unsigned draining; /* bit i: worker i, state DRAINING */
};

struct fixture {
    char dir[64], socket[108], routes_file[108];
    struct fake_manager manager;
    struct fake_worker workers[FIXTURE_WORKERS];
    struct gateway_config config;
    struct gateway *gateway;
    struct rpc_client *client;
    uint64_t generation;
    bool parked, wakes; /* for every version: its replicas are parked; a request may wake it */
    uint32_t weight;    /* traffic weight of every version; not 0: sessions stay */
    unsigned pending;   /* bit i: worker i is pending, whatever its bits in the routes say */
    Sluice__V1__ModelInfo *info; /* info of every version; NULL: the routes have no info */
};

/* The first function starts everything but the gateway. The second starts the gateway with
 * `config`. */
void fixture_init(struct fixture *f);
void fixture_start_gateway(struct fixture *f);
/* fixture_init, the first n workers, "m" version "1" behind all of them, the gateway; waits until
 * they are usable. */
void fixture_start(struct fixture *f, unsigned n_workers);
void fixture_stop_gateway(struct fixture *f, uint32_t grace_ms);
/* Stops everything. Checks that the counters balance and no request is left. */
void fixture_stop(struct fixture *f);

/* For conditions inside the gateway, which have no signal a test could wait for. */
void fixture_pause_ms(int64_t ms);
/* Wait up to 10 s. The first waits until n requests wait for a lost client. The second waits until
 * the only live request has reached a stage at its worker (enum relay_stage). */
void fixture_wait_detached(struct fixture *f, uint64_t n);
void fixture_wait_stage(struct fixture *f, int stage);
/* The first of n workers that carries a request; fails where there is none. */
unsigned fixture_busy_worker(struct fixture *f, unsigned n_workers);

void fake_manager_start(struct fake_manager *manager);
void fake_manager_kill(struct fake_manager *manager);

/* Builds the table, and makes the manager send it. */
void fixture_routes(struct fixture *f, const struct fixture_route *routes, size_t n_routes);
/* Waits up to 10 s until health.Check of a name answers `serving` (-1: NOT_FOUND). */
void fixture_wait_health(struct fixture *f, const char *name, int serving);
/* Waits until n links of "m"/"1" take requests. */
void fixture_wait_usable(struct fixture *f, unsigned n);
/* Waits up to 10 s until no request is live, and checks accepted = ok + failed + cancelled. */
struct gateway_counters fixture_wait_rest(struct fixture *f);

/* --- a client --- */

/* A generation as a client sees it. Checks each message as it comes: prompt_info first and once,
 * first_index without gaps, text that belongs to the ids, nothing after finished. */
struct client_stream {
    struct rpc_stream *stream;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t *ids[STREAM_MAX_CHOICES];
    unsigned n_ids[STREAM_MAX_CHOICES];
    bool finished[STREAM_MAX_CHOICES];
    unsigned n_tokens, n_messages, n_infos, n_finished, n_logprobs, max_ids;
    uint32_t text_bytes; /* same as in the workers */
    const char *complaint;
    bool has_receipt;
    uint32_t n_resumes;
    bool numerics_changed;
    char receipt_replica[32];
    bool over;
    struct error status;
};

struct client_request {
    const char *model, *version, *text, *request_id, *session_key;
    uint64_t seed;
    uint32_t max_tokens, n;
    bool logprobs;
    uint64_t timeout_ms;
    uint32_t window_ms;  /* window for a reattach, in ms */
    uint32_t text_bytes; /* as sent to the workers */
};

/* Fills the message; it borrows from `request` and from `out`. */
struct client_message {
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Output output;
};
void client_message_fill(const struct client_request *request, struct client_message *out);

void client_open(struct fixture *f, const struct client_request *request,
                 struct client_stream *stream);
void client_wait_tokens(struct client_stream *stream, unsigned n);
/* Waits for the end; the status is stream->status. Fails the test if a message broke a rule. */
int client_wait_end(struct client_stream *stream);
/* True if the stream has ended, at this moment. */
bool client_is_over(struct client_stream *stream);
void client_close(struct client_stream *stream);
/* Fails the test unless the stream ended well with exactly the tokens of the request. */
void client_expect_whole(struct client_stream *stream, const struct client_request *request);
/* Opens, expects the whole answer, closes. */
void client_run(struct fixture *f, const struct client_request *request);
/* A generation that must fail; returns the status, fills *out. */
int client_fail(struct fixture *f, const struct client_request *request, struct error *out);
