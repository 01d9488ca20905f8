/* support_worker_parts.h: shared parts of the worker's two halves. support_worker.c has its
 * streams and its life, support_worker_engine.c its answers. Called under the worker's lock. */
#pragma once

#include "tests/unit/gateway/support/support_worker.h"

struct rpc_call;

struct fake_request {
    struct fake_request *next;
    uint64_t id, seed;
    uint32_t *prompt;
    size_t n_prompt;
    uint32_t n_choices, max_tokens;
    uint32_t n_generated[FAKE_MAX_CHOICES], n_released[FAKE_MAX_CHOICES];
    bool finished[FAKE_MAX_CHOICES];
    bool paused, told, logprobs, sums, failed;
    int64_t credit; /* INT64_MAX: no limit */
};

struct fake_session {
    struct fake_session *next;
    struct fake_worker *worker;
    struct rpc_call *call;
    struct fake_request *requests;
    bool greeted;
};

/* Frees the request and takes it out of its list. */
void fake_request_free(struct fake_worker *worker, struct fake_request **at);
void fake_session_send(struct fake_session *session, Sluice__Worker__V1__StepItem **items,
                       size_t n);
void fake_session_fail(struct fake_session *session, uint64_t id, int status, const char *reason);
/* Runs a step: each request sends its events, and ended requests are removed. */
void fake_session_step(struct fake_worker *worker, struct fake_session *session);
