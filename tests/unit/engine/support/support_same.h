/* support_same.h: checks that 64 requests alone give the same ids and text as the same 64 at once.
 * Variants differ in lengths, chunks, threads, ranks, pools and caches. */
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
    /* a tiny model that drafts as many tokens as allowed; NULL: prompt lookup */
    const char *draft;
    double least_accepted; /* least share of accepted drafts */
};

/* Job i of 64: mixed lengths, some greedy, most drawn, some with penalties, choices, stops and
 * logprobs. Every fourth prompt begins like the others of its kind. Valid until the next make. */
void same_make_jobs(uint32_t vocab, uint32_t max_tokens);
/* Number of requests that run: all, or SLUICE_TEST_JOBS, where a step takes seconds (an emulated
 * GPU). Answers are shorter then too. Checks that need a crowd are left out: preemptions, and how
 * full steps are. */
uint32_t same_n_jobs(void);
struct engine_request *same_job(uint32_t i);

/* Runs the requests alone (as in variants[0]), then at once in every variant. Fails where anything
 * differs, blocks are lost, or batching is less than promised. max_tokens: limit of the longest
 * answer. */
void same_check(const char *model, enum dtype kv_dtype, const struct same_variant *variants,
                size_t n_variants, uint32_t max_tokens);
/* The same, with variants in pp pipeline stages. The requests alone run on a single rank. */
void same_check_stages(const char *model, enum dtype kv_dtype, uint32_t pp,
                       const struct same_variant *variants, size_t n_variants, uint32_t max_tokens);
