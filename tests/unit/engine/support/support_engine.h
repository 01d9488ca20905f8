/* support_engine.h: runs requests through an engine and collects the events per choice. A single
 * reader checks in every event what holds for all events (order, counts, a single end). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

enum { RUN_MAX_CHOICES = 8 };

/* State of a reader after an event. */
struct run_cut {
    uint32_t n_ids, n_released;
    size_t n_text;
};

struct run_choice {
    uint32_t *ids;
    uint32_t n_ids, n_released;
    char *text;
    size_t n_text;
    struct engine_logprob *logprobs;
    uint32_t n_logprobs;
    struct run_cut *cuts;
    uint32_t n_cuts;
    enum finish_reason reason;
    int status;
    char message[128];
    char matched_stop[64];
    int64_t matched_stop_id;
    bool finished;
};

struct run_result {
    uint64_t id; /* set by run_submit() */
    struct run_choice choices[RUN_MAX_CHOICES];
    uint32_t n_choices, n_finished, n_events;
    struct engine_logprob *prompt_logprobs; /* as they came, from first_prompt_logprob on */
    uint32_t n_prompt_logprobs, first_prompt_logprob;
    bool started, done;
    struct engine_usage usage;
    int64_t first_ns, done_ns; /* clock when the first ids and the end were read */
};

/* A small engine on tests/golden/tiny/<name>.gguf (or a path with a slash in it): 2 threads, blocks
 * of 16, 4,096 KV tokens, 32 sequences, 128 rows per step, chunks of 32. */
struct engine_config run_config(const char *name);
/* Opens an engine. Fails the test with the error's text on an error. Until run_close() the engine's
 * events wake run_wait(). Only one engine at a time. */
struct engine *run_open(struct engine_config *cfg);
void run_close(struct engine *engine);

/* From now until run_close() every step with news takes at least this long. A request of 400 tokens
 * then still runs when the test acts on it, however busy the machine is. */
void run_slow_steps(int64_t ns);

/* Greedy sampling that ignores end-of-text tokens. The caller keeps the prompt until the request is
 * submitted. */
struct engine_request run_request(const uint32_t *prompt, uint32_t n_prompt, uint32_t max_tokens);
/* Returns the first n tokens of the random prompt of 512 that run_request() uses. */
struct engine_request run_simple(uint32_t n_prompt, uint32_t max_tokens);
struct engine_stats run_stats(struct engine *engine);
/* Waits until no request runs or waits. */
void run_wait_idle(struct engine *engine);

/* Submits with user_data = result; the caller keeps *result until the request is done. Fails the
 * test on an error. */
void run_submit(struct engine *engine, struct engine_request *req, struct run_result *result);
/* Reads all events that have arrived. */
void run_poll(struct engine *engine);
/* Reads events until all n requests are done. Fails the test after 120 s. */
void run_wait(struct engine *engine, struct run_result *results, size_t n);
/* Reads events until the first choice has n ids, or the request is done. */
void run_wait_ids(struct engine *engine, struct run_result *result, uint32_t n);
/* Waits at most 100 ms for an event. */
void run_pause(void);
void run_sleep_ms(int64_t ms);
/* Disturbs each request once it has some tokens, later ones later. The first
 * of three is cancelled, the second paused, the third shortened to 100. Then resumes the paused
 * requests, and waits for all. */
void run_disturb(struct engine *engine, struct run_result *results, uint32_t n);
void run_result_fini(struct run_result *result);

/* Prompts of any length from a generator, ids below `vocab`, never special ones (≥ 3). */
void run_random_prompt(uint32_t seed, uint32_t *ids, uint32_t n, uint32_t vocab);
/* Same ids, text and ending of every choice; fails with `what` otherwise. */
void run_assert_same(const struct run_result *a, const struct run_result *b, const char *what);
