/* bench_prompts.h: the prompts of a load: from a file in order, or random token ids. Request i of a
 * seed is always the same. Any thread after create. */
#pragma once

#include <stdint.h>

#include "base/numbers.h"

struct bench_prompts;
struct error;

struct bench_prompts_config {
    const char *path; /* a prompt per line, or (*.jsonl) an object; empty: random prompts */
    struct number_range n_tokens; /* length of random prompts */
    struct number_range max_tokens;
    uint64_t n_shared;   /* tokens that all random prompts begin with; below n_tokens.min */
    uint32_t vocab_size; /* vocabulary of the model; for random prompts */
    uint64_t seed;
};

/* The prompt of one request. */
struct bench_prompt {
    const char *text;    /* NULL: use ids; borrowed from the prompts */
    const uint32_t *ids; /* [n_ids], in the caller's storage */
    uint32_t n_ids;
    uint32_t max_tokens;
};

/* Reads the file. Errors NOT_FOUND and INVALID_ARGUMENT give the file and the line. The caller owns
 * *out_prompts. */
int bench_prompts_create(const struct bench_prompts_config *config,
                         struct bench_prompts **out_prompts, struct error *err);
void bench_prompts_destroy(struct bench_prompts *prompts);

/* Number of lines in the file; 0 for random prompts. */
uint64_t bench_prompts_n_lines(const struct bench_prompts *prompts);
/* Makes the prompt of request `index`. `room` has space for n_tokens.max ids. */
void bench_prompts_get(const struct bench_prompts *prompts, uint64_t index, uint32_t *room,
                       struct bench_prompt *out_prompt);
