/* support_worker.h: a worker inside the test's process, on its own socket, and a server's side of
 * its Serve stream that stores the answers. Fails the test where anything cannot be had. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"
#include "sluice/worker/v1/report.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct rpc_client;
struct rpc_stream;

enum { TEST_EPOCH = 7, MAX_ANSWERS = 128, MAX_ANSWER_IDS = 512 };

struct test_worker {
    pthread_t thread;
    char dir[64], socket[96], exit_report[96];
    int status; /* result of serve_run, after test_worker_join() */
    struct rpc_client *client;
};

/* Each token of the sample model takes milliseconds, so that a cancel, a pause or a drain hits a
 * running request. The tiny model serves where that does not matter. */
#define TEST_SAMPLE_MODEL NULL
#define TEST_TINY_MODEL   "tests/golden/tiny/q4_1.gguf"

/* Serves <model>, a path in the source tree (or TEST_SAMPLE_MODEL), with further flags
 * (NULL-terminated, may be NULL). Waits until the worker is READY, unless wait is false. */
void test_worker_start(struct test_worker *worker, const char *model, const char *const *flags,
                       bool wait);
/* Calls Shutdown with that grace, and waits for the end of the worker's thread. */
void test_worker_stop(struct test_worker *worker, uint32_t grace_ms);
void test_worker_join(struct test_worker *worker);
/* Returns exit.pb, owned by the caller (rpc_message_free); NULL without a report. */
Sluice__Worker__V1__ExitReport *test_worker_exit_report(struct test_worker *worker);
/* Returns the newest status, owned by the caller. */
Sluice__Worker__V1__WorkerStatus *test_worker_status(struct test_worker *worker);
void test_worker_wait_idle(struct test_worker *worker);

/* Events of choice 0 of a request. */
struct answer {
    uint32_t ids[MAX_ANSWER_IDS];
    _Atomic uint32_t n_ids, n_released, n_items;
    struct strbuf text;
    bool has_prompt, finished, failed;
    uint32_t n_prompt, n_cached;
    _Atomic uint32_t n_finished; /* over all choices */
    int reason;
    uint32_t n_tokens;
    _Atomic bool has_receipt;
    struct error error;
};

struct test_stream {
    struct rpc_stream *stream;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct answer answers[MAX_ANSWERS]; /* by id */
    _Atomic uint64_t n_steps, last_step;
    _Atomic uint32_t n_heartbeats, n_ready; /* n_ready: from the last heartbeat */
    uint32_t heartbeat_ms;                  /* as promised */
    _Atomic bool hello, draining, ended;
    char numerics_id[128];
    struct error status;
};

/* Opens Serve and sends a hello with this epoch. With epoch 0, sends no hello. */
void test_stream_open(struct test_stream *s, struct test_worker *worker, uint64_t epoch);
void test_stream_close(struct test_stream *s); /* cancels it and waits for its end */
void test_stream_send(struct test_stream *s, const Sluice__Worker__V1__ServeRequest *frame);
/* Sends a submit with this id, with seed = id and the fields of `request`. */
void test_stream_submit(struct test_stream *s, uint64_t id, Sluice__V1__GenerateRequest *request);
/* Submits a request with 4 tokens of credit. The request waits after these until more credit comes.
 */
void test_stream_submit_held(struct test_stream *s, uint64_t id, const char *text,
                             uint32_t max_tokens);
void test_stream_credit(struct test_stream *s, uint64_t id, uint32_t n_tokens);
void test_stream_cancel(struct test_stream *s, uint64_t id);
/* Waits up to 20 s until the request has finished or failed. */
struct answer *test_stream_wait(struct test_stream *s, uint64_t id);
/* Waits until n tokens of the request have come. */
void test_stream_wait_tokens(struct test_stream *s, uint64_t id, uint32_t n);
/* Waits until n heartbeats have come since the start of the stream. */
void test_stream_wait_heartbeats(struct test_stream *s, uint32_t n);
void test_stream_wait_ended(struct test_stream *s);

/* A greedy request of a text. The caller owns the structs. */
struct text_request {
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Sampling sampling;
    Sluice__V1__Output output;
};
void text_request_init(struct text_request *r, const char *text, uint32_t max_tokens);
