/* engine_private.h: the engine's state, shared by its files alone: engine.c opens and closes,
 * engine_submit.c is the callers' side, engine_loop.c the engine thread, engine_events.c the way
 * back.
 *
 * Callers reach the engine thread through one lock-free inbox of requests, each with the bits of
 * what is asked of it. The engine thread never waits for a lock while it has steps to run: news
 * that it cannot publish at once (a reader holds the events lock) go out with the next step's. */
#pragma once

#include <pthread.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "base/sha256.h"
#include "engine/request/request.h"
#include "engine/schedule/admission.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_cost.h"

struct draft_model;
struct step_batch;

enum request_control {
    CONTROL_QUEUED = 1, /* is in the inbox */
    CONTROL_SUBMIT = 2,
    CONTROL_CANCEL = 4,
    CONTROL_PAUSE = 8, /* to want_paused */
    CONTROL_PRIORITY = 16,
    CONTROL_MAX_TOKENS = 32,
    CONTROL_STOPS = 64,
};

/* Engine statistics as words that any thread may read while the engine thread writes: the number is
 * odd during a write. */
enum { STATS_WORDS = (sizeof(struct engine_stats) + 7) / 8 };
struct shared_stats {
    _Atomic uint32_t sequence;
    _Atomic uint64_t words[STATS_WORDS];
};

#define ENGINE_INCOMING (1ULL << 32)

struct engine {
    /* immutable after open */
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct error template_error;
    struct executor *executor;
    struct draft_model *draft_model; /* NULL: none */
    struct executor_plan memory;     /* of both */
    struct engine_config cfg;
    struct request_limits limits;
    char digest[SHA256_HEX_BYTES];

    /* engine thread */
    pthread_t thread;
    bool has_thread;
    struct scheduler *scheduler;
    struct step_batch *batch;
    struct sample_params *params;  /* [max_concurrent + ENGINE_SCORE_ROWS + ENGINE_DRAFT_ROWS] */
    struct sample_result *results; /* as many, of the step under way, */
    struct sample_result *last_results; /* and of the one before */
    uint32_t n_results;
    uint32_t *turn; /* as many: samples drawn together */
    bool *drawn;    /* as many: of a plan's samples */
    /* Tokens of the last step whose text is still to be made, where a step runs by itself: that is
     * done while the next one does. Ended in the meantime: in text that was made so. */
    bool defers;
    struct sequence **deferred, **deferred_ended; /* as many as results */
    uint32_t *deferred_result;                    /* as many: which result */
    uint32_t n_deferred, n_deferred_ended;
    int64_t deferred_ns; /* when they were drawn */
    int64_t drawn_ns;    /* when the last step's were; 0: the loop has slept since */
    struct step_cost step_cost;
    struct request *dirty; /* with news to publish */
    struct engine_stats stats;
    struct admission admission;

    /* inbox: any thread */
    _Atomic(struct request *) inbox;
    atomic_bool closing, draining, sleeping, failed;
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake;
    bool has_locks;
    struct error failure; /* written once, before `failed` is set */

    /* submitters */
    pthread_mutex_t registry_lock;
    struct hash_map registry; /* id → request whose last event is not read; holds a reference */
    uint64_t last_id;
    atomic_uint n_live;       /* requests in the registry */
    atomic_uint n_unfinished; /* of them, not yet published as ended */
    /* Requests that wait: those the engine thread has not seen times ENGINE_INCOMING, plus those in
     * its queue as it last said. One word, so that none is counted in both or in neither. */
    atomic_ullong waiting;
    uint32_t n_queued_said; /* the engine thread's: what is in it */
    atomic_ullong n_submitted, n_refused;

    pthread_mutex_t events_lock;
    struct request *ready_first, *ready_last; /* with news to read */
    struct shared_stats shared_stats;
};

/* The engine thread's function. */
void *engine_loop_run(void *engine);
/* Puts a request with `bits` into the inbox and wakes the loop. */
void engine_post(struct engine *engine, struct request *request, unsigned bits);

/* engine_size.c: `draft` has the draft model's figures, which lie on the device of the head. */
void engine_add_plan(struct executor_plan *sum, const struct executor_plan *draft);

/* engine_events.c, engine thread: notes that a request has news; publishes all noted (where `wait`
 * is false: unless a reader holds the lock); tells whether anything was published. */
void engine_events_mark(struct engine *engine, struct request *request);
bool engine_events_publish(struct engine *engine, bool wait);

/* Takes the scheduler's figures and lets other threads see all; of the requests that were posted,
 * n_seen are now in those figures. Engine thread, and before it
 * starts. */
void engine_stats_refresh(struct engine *engine, uint32_t n_seen);
