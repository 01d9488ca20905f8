/* engine_private.h: the engine's state, shared by the files of this folder. The file engine.c opens
 * and closes the engine. Callers' threads run engine_submit.c; the engine thread runs
 * engine_loop.c, and its steps are in engine_step.c. Events are published and read in
 * engine_events.c.
 *
 * Callers reach the engine thread through one lock-free inbox of requests. Control bits in each
 * request say what to do. The engine thread never waits for a lock while it has steps to run. If a
 * reader holds the events lock, events are published after the next step. */
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

/* Bits of request.control. */
enum request_control {
    CONTROL_QUEUED = 1, /* is in the inbox */
    CONTROL_SUBMIT = 2,
    CONTROL_CANCEL = 4,
    CONTROL_PAUSE = 8, /* set the paused state to want_paused */
    CONTROL_PRIORITY = 16,
    CONTROL_MAX_TOKENS = 32,
    CONTROL_STOPS = 64,
};

/* Engine statistics as 64-bit words. Any thread may read while the engine thread writes: the
 * sequence number is odd during a write. */
enum { STATS_WORDS = (sizeof(struct engine_stats) + 7) / 8 };
struct shared_stats {
    _Atomic uint32_t sequence;
    _Atomic uint64_t words[STATS_WORDS];
};

/* A step that is scheduled and not yet committed. */
struct engine_flight {
    struct step_batch *batch;
    struct scheduler_plan plan;
    uint32_t n_rows[2]; /* rows by role: prompt, generated */
    int64_t begin_ns;
    bool is_submitted; /* the executor has the step */
    int rc;            /* why it has not: 0 or a status, with an error */
    struct error err;
};

/* Unit of engine.waiting for requests in the inbox. */
#define ENGINE_INCOMING (1ULL << 32)

struct engine {
    /* immutable after open */
    struct tokenizer *tokenizer;
    struct chat_templates *templates;
    struct executor *executor;
    struct draft_model *draft_model; /* NULL: no draft model */
    struct executor_plan memory;     /* sum over model and draft model */
    struct engine_config cfg;
    struct request_limits limits;
    uint32_t *drawable; /* owned; limits.drawable */
    uint32_t suppressed_ids[DEFAULT_SAMPLING_MAX_SUPPRESSED],
        n_suppressed; /* limits.suppressed_ids */
    char digest[SHA256_HEX_BYTES];

    /* fields of the engine thread */
    pthread_t thread;
    bool has_thread;
    struct scheduler *scheduler;
    /* Steps in flight: a ring of max_flights, the oldest first. More than one only where several
     * CPU stages work at once. Then no text is deferred, and no step is prepared ahead. */
    struct engine_flight *flights;
    uint32_t max_flights, first_flight, n_flights;
    int64_t landed_ns;             /* end of the last step */
    struct sample_params *params;  /* [max_concurrent + ENGINE_SCORE_ROWS + ENGINE_DRAFT_ROWS] */
    struct sample_result *results; /* results of the current step, same length as params, */
    struct sample_result *last_results; /* and of the previous step */
    uint32_t n_results;
    uint32_t *to_draw; /* same length: samples that are drawn together */
    bool *drawn;       /* same length: true once the sample of the plan is drawn */
    /* The text of the last step's tokens is deferred: it is decoded while the device runs the next
     * step. The array `deferred` has the choices of these tokens; deferred_ended has the choices
     * that the decoded text has ended. */
    bool defers;                                  /* this engine defers text */
    struct sequence **deferred, **deferred_ended; /* same length as results */
    uint32_t *deferred_result;                    /* same length: index of the token's result */
    uint32_t n_deferred, n_deferred_ended;
    int64_t deferred_ns; /* when the tokens were drawn */
    int64_t drawn_ns;    /* when the last step's tokens were drawn; 0: the loop has slept since */
    struct step_cost step_cost;
    unsigned char *host_states; /* states of sequences that wait (engine_moves.c); NULL: none */
    int64_t move_ns;            /* time to copy a state to or from there */
    struct request *dirty;      /* list of requests with unpublished events */
    struct engine_stats stats;
    struct admission admission;

    /* inbox: any thread */
    _Atomic(struct request *) inbox;
    atomic_bool closing, draining, sleeping, failed;
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake;
    bool has_locks;
    struct error failure; /* written once, before `failed` is set */

    /* fields of the submitting threads */
    pthread_mutex_t registry_lock;
    struct hash_map registry; /* id → request whose last event is not read; holds a reference */
    uint64_t last_id;
    atomic_uint n_live;       /* requests in the registry */
    atomic_uint n_unfinished; /* those in the registry that are not yet published as ended */
    /* Waiting requests: the number in the inbox times ENGINE_INCOMING, plus the number queued by
     * the scheduler (n_queued_counted). A single atomic counts each request exactly once. */
    atomic_ullong waiting;
    uint32_t n_queued_counted; /* engine thread: queued requests that `waiting` includes */
    atomic_ullong n_submitted, n_refused;

    pthread_mutex_t events_lock;
    struct request *ready_first, *ready_last; /* list of requests with unread events */
    struct shared_stats shared_stats;
};

/* engine_loop.c, engine thread. */
/* The thread's function. */
void *engine_loop_run(void *engine);
/* Ends all choices that still run, or one. None is in flight. */
void engine_end_request(struct engine *engine, struct request *request, enum finish_reason reason,
                        int status, const char *message);
void engine_end_choice(struct engine *engine, struct sequence *seq);
/* Publishes statistics, then events: a client that reads an end may submit at once and needs the
 * freed slot. `n_new`: requests taken from the inbox since the last statistics. */
void engine_publish_news(struct engine *engine, uint32_t n_new, bool wait);

/* engine_step.c, engine thread. */
/* Begins as many steps as may be in flight, and ends the oldest. Returns false if nothing could
 * run. */
bool engine_step_run(struct engine *engine);
/* Ends all steps in flight. Requests may end. */
void engine_step_settle(struct engine *engine);
/* Decodes the text of the deferred tokens. If a step is in flight, choices that end now stay in the
 * scheduler until the step is over. Tokens that the step draws for them are dropped. */
void engine_step_deferred(struct engine *engine, bool in_flight);

/* Puts a request with `bits` into the inbox and wakes the loop. */
void engine_post(struct engine *engine, struct request *request, unsigned bits);

/* engine_moves.c: host memory for n_states states. Engine thread, or before that thread starts. */
int engine_moves_open(struct engine *engine, uint32_t n_states, struct error *err);
void engine_moves_close(struct engine *engine);
/* Moves states and copies blocks before a step. */
int engine_moves_make(struct engine *engine, const struct scheduler_plan *plan, struct error *err);

/* engine_size.c: adds the plan of the draft model, whose memory lies on the device of the head. */
void engine_add_plan(struct executor_plan *sum, const struct executor_plan *draft);
/* The number of states of waiting sequences that lie in host memory, at most (engine_moves.c). Adds
 * their bytes to the CPU's workspace; a plan for GPUs alone does not count them. */
uint32_t engine_host_states(const struct executor_plan *plan, uint32_t max_seqs);
void engine_add_host_states(struct executor_plan *plan, uint32_t max_seqs);

/* engine_events.c, engine thread. mark: the request has events to publish. publish: publishes the
 * events of all marked requests. If `wait` is false and a reader holds the lock, nothing is
 * published. Returns true if events were published. */
void engine_events_mark(struct engine *engine, struct request *request);
bool engine_events_publish(struct engine *engine, bool wait);

/* Reads the scheduler's counters and publishes all statistics. n_seen: requests that were taken
 * from the inbox since the last call. Engine thread, or before that thread starts. */
void engine_stats_refresh(struct engine *engine, uint32_t n_seen);
