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

/* The part of a choice that was reported to the server. */
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
    int64_t credit_tokens;                 /* tokens that may still be released; INT64_MAX: no
                                            * limit */
    Sluice__V1__UpdateFrame *early_update; /* owned; arrived before the engine had the request */

    /* constant after the submit */
    uint32_t *prompt_ids; /* owned */
    uint32_t n_prompt_ids;
    uint32_t n_choices;
    uint64_t seed;
    uint32_t n_truncated;
    bool want_logprobs; /* log-probabilities are needed, at least for their sum */
    bool send_logprobs, ignore_eos, numerics_changed;
    bool ends_by_fim; /* a fim token is an end token */

    /* event thread only */
    struct stream_choice choices[ENGINE_MAX_CHOICES];
    bool error_sent;
    bool out_of_memory; /* an item could not be allocated: the request is being ended */
    struct stream_request *next_ended;
};

/* Takes `submit` (rpc_message_free) in any case. Returns NULL if memory is exhausted. The one
 * reference is for the session's map. */
struct stream_request *stream_request_create(struct session *session,
                                             Sluice__Worker__V1__Submit *submit);
void stream_request_retain(struct stream_request *request);
void stream_request_release(struct stream_request *request);

/* Builds the prompt and submits the request to the engine; on a request thread. The argument is
 * the request, with a reference that this call drops. Errors go to the server as the request's
 * end. */
void stream_request_start(void *arg);

/* Changes take effect now, or when the request reaches the engine. */
void stream_request_cancel(struct stream_request *request, bool draining);
void stream_request_pause(struct stream_request *request, bool paused);
void stream_request_credit(struct stream_request *request, uint32_t n_tokens);
/* Subtracts tokens that were sent to the server from the credit. */
void stream_request_spend(struct stream_request *request, uint32_t n_tokens);
/* The server has checked the update against the tokens it knows. If more than the new max_tokens
 * have been generated meanwhile, the request ends there. */
int stream_request_update(struct stream_request *request, const Sluice__V1__UpdateFrame *update,
                          struct error *err);
