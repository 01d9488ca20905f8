/* support_same.h: 64 requests alone give the same ids and text as the same 64 at once, in every way
 * of running them: lengths, chunks, threads, ranks, pools, caches. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

enum { SAME_N_JOBS = 64, SAME_MAX_PROMPT = 100 };

struct same_variant {
    const char *name;
    uint32_t tp, n_threads, block_size, kv_tokens, chunk, max_rows, max_concurrent;
    bool no_prefix_cache, expect_preemptions;
    double least_batching; /* decode rows per sequence that could have decoded */
    double least_rows;     /* decode rows per step with any */
    uint32_t draft_tokens;
    const char *draft;     /* a tiny model that drafts all it may; NULL: prompt lookup */
    double least_accepted; /* of its tokens */
};

/* Job i of 64: mixed lengths, some greedy, most drawn, some with penalties, choices, stops and
 * logprobs. Every fourth prompt begins like the others of its kind. Valid until the next make. */
void same_make_jobs(uint32_t vocab, uint32_t max_tokens);
/* How many of them are run: all, or as many as SLUICE_TEST_JOBS says, where a step takes seconds
 * (an emulated GPU); then answers are shorter too, and what only a crowd shows is left out:
 * preemptions, and how full steps are. */
uint32_t same_n_jobs(void);
struct engine_request *same_job(uint32_t i);

/* Runs them alone (as variants[0] says), then every variant's way at once; fails where anything
 * differs, blocks are lost, or batching was less than promised. max_tokens: of the longest answer.
 */
void same_check(const char *model, enum dtype kv_dtype, const struct same_variant *variants,
                size_t n_variants, uint32_t max_tokens);
