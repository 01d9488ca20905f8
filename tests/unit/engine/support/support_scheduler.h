/* support_scheduler.h: a scheduler with a hash as its model. Each KV position holds the
 * hash of all tokens up to it. Reads go through the block tables, as in an executor. So a wrong
 * block, copy, shared prefix, replay or draft changes tokens. A test can compute every answer
 * beforehand. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/request/request.h"
#include "engine/schedule/scheduler.h"

enum { MAX_BLOCKS = 4096, BLOCK = 8, BENCH_MOST_FLIGHTS = 8 };

/* A step in flight. */
struct bench_flight {
    struct step_batch *batch;
    struct scheduler_plan plan;
};

struct bench {
    struct scheduler *sched;
    struct scheduler_config cfg;
    struct bench_flight flights[BENCH_MOST_FLIGHTS]; /* ring, the oldest first */
    uint32_t first_flight, n_flights;
    /* the step that runs, or ran last */
    struct step_batch *batch;
    struct scheduler_plan plan;
    struct request_limits limits;
    struct sample_result results[256];
    uint64_t kv[MAX_BLOCKS * BLOCK];
    uint64_t written[MAX_BLOCKS * BLOCK]; /* step that wrote the place last */
    /* the same for layers with a window */
    uint64_t window_kv[MAX_BLOCKS * BLOCK], window_written[MAX_BLOCKS * BLOCK];
    uint64_t n_steps;
    int64_t now;
    bool repeats; /* the model's answers mostly repeat, so that drafts are right */
    uint64_t n_drafted, n_accepted;
    /* called with the oldest step in flight, which is not run yet, or NULL */
    void (*on_schedule)(struct bench *b);
    /* called with the moves of a plan, when no other step is in flight, or NULL */
    void (*on_moves)(const struct bench *b, const struct scheduler_plan *plan);
    bool looks_ahead;            /* each step looks ahead to the next one */
    bool is_expected;            /* the last step expected a next one, which is: */
    struct step_batch *expected; /* the expected step */
    uint64_t n_expected, n_kept; /* expected steps, and those that came as expected */
};

/* The only bench of a test program. */
extern struct bench bench;

/* 8 sequences, 64 rows, 64 blocks. */
extern const struct scheduler_config bench_small;

void bench_open(struct bench *b, const struct scheduler_config *given);
/* Fails the test if requests are left in the bench. */
void bench_close(struct bench *b);

/* Schedules as many steps as may be in flight. Then runs the oldest and ends the finished choices.
 * So a step runs as late as in the last stage of a pipeline. Returns false if no request could
 * run. */
bool bench_step(struct bench *b);
/* Runs all steps in flight. A request in flight must not end. */
void bench_settle(struct bench *b);

struct request *bench_make(struct bench *b, uint32_t seed, uint32_t n_prompt, uint32_t max_tokens,
                           uint32_t n, int32_t priority, const char *caller);

/* Checks the answer. Events around the request must not change it. */
void bench_assert_answer(const struct request *r, bool whole);

extern uint32_t bench_rng;
uint32_t bench_below(uint32_t n);
