/* bench_prompts.h: what a load asks: prompts of a file in turn, or token ids drawn from a seed.
 * Request i of a seed is the same whoever sends it and when. Any thread after create. */
#pragma once

#include <stdint.h>

#include "base/numbers.h"

struct bench_prompts;
struct error;

struct bench_prompts_config {
    const char *path;             /* a prompt per line, or (*.jsonl) an object; empty: drawn */
    struct number_range n_tokens; /* of drawn prompts */
    struct number_range max_tokens;
    uint64_t n_shared;   /* first tokens that all drawn prompts have; below n_tokens.min */
    uint32_t vocab_size; /* of the model; drawn prompts only */
    uint64_t seed;
};

/* One request's. */
struct bench_prompt {
    const char *text;    /* NULL: ids; borrowed from the prompts */
    const uint32_t *ids; /* [n_ids], in the caller's room */
    uint32_t n_ids;
    uint32_t max_tokens;
};

/* Reads the file. NOT_FOUND and INVALID_ARGUMENT name it and the line. *out_prompts is owned. */
int bench_prompts_create(const struct bench_prompts_config *config,
                         struct bench_prompts **out_prompts, struct error *err);
void bench_prompts_destroy(struct bench_prompts *prompts);

/* Lines that the file has; 0 where prompts are drawn. */
uint64_t bench_prompts_n_lines(const struct bench_prompts *prompts);
/* `room` holds n_tokens.max ids. */
void bench_prompts_get(const struct bench_prompts *prompts, uint64_t index, uint32_t *room,
                       struct bench_prompt *out_prompt);
