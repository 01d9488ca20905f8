/* worker.h: the state of a serving process, shared by its RPC handlers, request threads, event
 * thread and main thread. A process has one; it lives from serve_run's start to its end. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/base/wake.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct chat_templates;
struct engine;
struct park_copy;
struct rpc_call;
struct rpc_server;
struct session;
struct settings;
struct unpark_orders;
struct watcher;
struct work_pool;
struct worker_meter;

enum { WORKER_PROTOCOL_MIN = 1, WORKER_PROTOCOL_MAX = 1, WORKER_MAX_RANKS = 32 };

/* The packed weights that a parked process has mapped, by rank. */
struct kept_weights {
    void *bases[WORKER_MAX_RANKS];
    uint64_t n_bytes[WORKER_MAX_RANKS];
    uint32_t n_ranks;
};

/* A Drain or Shutdown that waits for its answer. */
struct drain_call {
    struct rpc_call *call; /* retained */
    bool shutdown;
    int64_t deadline_ns;
    struct drain_call *next;
};

struct worker {
    /* Replaced when a parked process gets a Wake; earlier settings stay readable. */
    const struct settings *_Atomic settings;
    struct rpc_server *server;
    struct work_pool *pool;
    struct worker_meter *meter;
    uint64_t start_ticks, memory_at_start_bytes;
    _Atomic int64_t started_ns; /* time when the load started */

    /* Set by the main thread before the state leaves LOADING, constant afterwards. NULL while
     * loading. Read with worker_engine(). */
    struct engine *engine;
    const struct chat_templates *templates; /* the model's, or own_templates */
    struct chat_templates *own_templates;   /* NULL: the settings have no template */
    struct chat_template_limits template_limits;
    uint32_t kv_block_tokens;
    int packed_fds[WORKER_MAX_RANKS]; /* inherited descriptors for shared packed weights */
    struct kept_weights kept;         /* weights of a parked process; main thread only */
    struct park_copy *copy;           /* park_copy.h; NULL in some tests */
    struct arena facts;
    Sluice__V1__ModelInfo *info;

    pthread_mutex_t lock;
    Sluice__Worker__V1__WorkerState state;
    struct error failure;
    struct session *sessions;
    uint64_t n_sessions; /* sessions opened since the start */
    struct watcher *watchers;
    struct drain_call *drain_calls;
    bool shutdown_asked, fast;    /* a first and a second signal have arrived */
    struct unpark_orders *orders; /* orders of the last Wake; NULL: there was none */
    bool orders_taken;
    uint64_t load_ms, warm_ms;
    struct executor_plan planned; /* sizes of the load; zeros: not yet known */
    uint32_t n_finished, n_ended; /* requests since the drain began */

    atomic_bool cancel_load; /* polled by the loader */
    _Atomic uint64_t rank_done[WORKER_MAX_RANKS], rank_total[WORKER_MAX_RANKS];
    _Atomic uint32_t n_ranks;
    _Atomic uint32_t n_live; /* requests between submit and last event */
    _Atomic bool ending;     /* event and status threads end */
    struct wake events, status, main, heartbeat;

    /* totals since the start */
    _Atomic uint64_t n_accepted, n_ok, n_failed, n_cancelled, n_expired, n_refused;
    _Atomic uint64_t n_prompt_tokens, n_generated_tokens, n_cached_tokens, prefill_ns, decode_ns;
};

void worker_init(struct worker *worker, const struct settings *settings);
void worker_fini(struct worker *worker);

/* Returns the engine if the worker serves, else NULL with *err. UNAVAILABLE while loading
 * (reason LOADING), the load's error after a failure. Any thread. */
struct engine *worker_engine(struct worker *worker, struct error *err);

void worker_set_state(struct worker *worker, Sluice__Worker__V1__WorkerState state);
Sluice__Worker__V1__WorkerState worker_state(struct worker *worker);

/* Sets the planned sizes of the load; watchers see them before the memory is taken. */
void worker_set_planned(struct worker *worker, const struct executor_plan *plan);

/* FAILED_PRECONDITION (reason PROTOCOL_MISMATCH, both ranges) if there is no common protocol
 * version with the peer. */
int worker_check_protocol(uint32_t peer_min, uint32_t peer_max, struct error *err);

/* Count a request as live (the engine may still refuse it), and as ended. The last end wakes the
 * main thread. */
void worker_request_begin(struct worker *worker);
void worker_request_end(struct worker *worker);

/* Fills *load (initialized) from the engine's figures. */
void worker_fill_load(const struct worker *worker, struct engine *engine,
                      Sluice__Worker__V1__Load *load);
