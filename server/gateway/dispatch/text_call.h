/* text_call.h: Tokenize, Detokenize and ApplyChatTemplate, which a worker of the version answers.
 * Workers own the tokenizer. Any front uses these calls. A call that finds no replica waits here.
 * If the replica is lost, another replica is asked. Any thread. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct dispatch;
struct error;
struct text_call;

/* The calls that wait for a replica. */
struct text_calls {
    struct dispatch *dispatch; /* outlives the calls */
    pthread_mutex_t lock;
    struct text_call *waiting; /* under the lock */
};

void text_calls_init(struct text_calls *calls, struct dispatch *dispatch);
void text_calls_fini(struct text_calls *calls);
/* Ticker thread: tries the waiting calls again, or ends them. */
void text_calls_retry_waiting(struct text_calls *calls);
void text_calls_end_waiting(struct text_calls *calls);

struct text_call_ops {
    /* The worker's answer, whose version is the one that the traffic rule chose, or NULL with the
     * error. Exactly once, and the last callback. */
    void (*answer)(void *arg, const ProtobufCMessage *response, const struct error *err);
    /* Optional: the call has waited some time for a model that wakes. */
    void (*waits)(void *arg);
};

struct text_call_params {
    const char *method;              /* a method of Worker; static */
    const ProtobufCMessage *request; /* borrowed until the answer */
    const char *model, *version;     /* copied */
    int64_t deadline_ns;             /* clock_now_ns(); INT64_MAX: none */
    const struct text_call_ops *ops; /* static */
    void *arg;
};

/* Chooses the version. *out_call is retained for the caller, who must start it. */
int text_call_create(struct text_calls *calls, const struct text_call_params *params,
                     struct text_call **out_call, struct error *err);
/* Sends the call. The answer may come before this returns. */
void text_call_start(struct text_call *call);
/* The client cancelled, is gone, or its deadline passed: cancels the worker's call, too. */
void text_call_cancel(struct text_call *call);
void text_call_release(struct text_call *call); /* NULL is accepted */
