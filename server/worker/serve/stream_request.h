/* stream_request.h: one request of a Serve stream, from its submit frame to its last event.
 * Reference counted; lock inside; any thread. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/serve/meter.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct session;

/* What has been told about one choice. */
struct stream_choice {
    uint32_t n_generated, n_released;
    double logprob_sum;
};

struct stream_request {
    _Atomic uint32_t n_refs;
    struct session *session; /* retained */
    uint64_t id;
    struct request_label label;
    int64_t arrived_ns;
    int64_t deadline_ns;                /* clock_now_ns() based; 0: none */
    Sluice__Worker__V1__Submit *submit; /* owned; NULL once the engine has it */

    pthread_mutex_t lock;
    bool submitted, cancelled, draining, over;
    uint64_t engine_id;
    bool paused_by_server, paused;
    int64_t credit_tokens;                 /* to be released; INT64_MAX: no limit */
    Sluice__V1__UpdateFrame *early_update; /* owned; came before the engine had the request */

    /* constant once submitted */
    uint32_t *prompt_ids; /* owned; freed once told */
    uint32_t n_prompt_ids;
    uint32_t n_choices;
    uint64_t seed;
    uint32_t n_truncated;
    bool want_logprobs; /* for their sum at least */
    bool send_logprobs, ignore_eos, numerics_changed;

    /* event thread */
    struct stream_choice choices[ENGINE_MAX_CHOICES];
    bool error_sent;
    bool out_of_memory; /* an item of it could not be made: it is being ended */
    struct stream_request *next_ended;
};

/* Takes over `submit` (rpc_message_free) in any case. NULL where there is no memory. One reference,
 * for the session's map. */
struct stream_request *stream_request_create(struct session *session,
                                             Sluice__Worker__V1__Submit *submit);
void stream_request_retain(struct stream_request *request);
void stream_request_release(struct stream_request *request);

/* Resolves the prompt and hands the request to the engine; on a request thread. arg is the request,
 * with a reference that this call drops. Errors go to the server as the request's end. */
void stream_request_start(void *arg);

/* Effects reach the engine now, or when the request does. */
void stream_request_cancel(struct stream_request *request, bool draining);
void stream_request_pause(struct stream_request *request, bool paused);
void stream_request_credit(struct stream_request *request, uint32_t n_tokens);
/* The credit that tokens sent to the server use up. */
void stream_request_spend(struct stream_request *request, uint32_t n_tokens);
/* The server has checked it against what it has seen; where more has been generated meanwhile than
 * the new max_tokens, the request ends with that. */
int stream_request_update(struct stream_request *request, const Sluice__V1__UpdateFrame *update,
                          struct error *err);
