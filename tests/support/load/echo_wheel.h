/* echo_wheel.h: types shared by the two halves of the echo: echo_serve.c, which takes requests, and
 * echo_wheel.c, which answers them. Call under the echo's lock, except in the wheel's own thread.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash_map.h"
#include "tests/support/load/echo_serve.h"

enum { MAX_CHOICES = 8 };

struct request {
    struct request *next, **at; /* links in the list of its slot */
    struct session *session;
    uint64_t id;
    int64_t deadline_ns; /* 0: none */
    int64_t credit;      /* tokens it may still send; negative: any number */
    uint32_t *prompt;    /* owned */
    size_t n_prompt;
    uint32_t n_choices, max_tokens;
    uint32_t n_generated[MAX_CHOICES];
    uint8_t finished; /* a bit per choice */
    bool paused, told, over;
};

struct session {
    struct session *next;
    struct echo *echo;
    struct rpc_call *call;
    struct request **slots; /* n_slots lists */
    struct hash_map live;   /* u64 id → request */
    uint64_t n_steps;
    bool greeted;
};

/* An item of a frame, with everything that it may point to. */
struct item {
    Sluice__Worker__V1__StepItem message;
    Sluice__V1__PromptInfo prompt_info;
    Sluice__V1__Finished finished;
    Sluice__V1__Usage usage;
    Sluice__V1__Receipt receipt;
    Sluice__V1__Error error;
    uint32_t token;
    char text[ECHO_TEXT_BYTES + 1];
};

struct echo {
    struct echo_config config;
    pthread_t wheel;
    pthread_mutex_t lock; /* everything below, and all sessions and requests */
    pthread_cond_t idle;
    struct session *sessions;
    uint32_t n_live, n_paused, i_slot;
    uint32_t next_slot; /* where the next request goes */
    bool draining;
    struct item *items; /* items of the current frame; owned by the wheel */
    Sluice__Worker__V1__StepItem **list;
    size_t n_items, items_capacity;
    uint64_t step_ns, progress;
    Sluice__Worker__V1__WorkerCounters counters;
};

/* protobuf-c's strings are not const; packing only reads. */
char *echo_word(const char *text);

/* Takes the request out of its slot and its session. */
void echo_request_free(struct echo *echo, struct request *request);
/* Answers `id` with an error, in a frame of its own. */
void echo_send_error(struct session *session, uint64_t id, const struct error *why);
/* The wheel's thread; `arg` is the echo. */
void *echo_turn_wheel(void *arg);
