/* draft_model.h: drafts by a second, smaller model of the same vocabulary. It runs on the threads
 * of the model it drafts for, in turns with it: before a step, pass by pass, one token further for
 * every sequence that drafts.
 *
 * Its tokens are drawn as the model's will be: the request's parameters, and the random number of
 * that position. Greedy requests get its greedy tokens; drawn ones are foretold far better than by
 * its greedy token, for two like distributions give mostly the same token for the same number (the
 * inverse CDF of sample.h). Penalties count the sequence's own tokens, not the drafted ones.
 *
 * K and V: its pool has the same blocks as the model's, under the same numbers, so a sequence's
 * block table serves both and nothing is kept of who holds what: whatever gives a sequence blocks
 * (prefix cache and its salts, choices of one prompt, preemption) gives it both contents. What it
 * has written there is told per sequence (struct draft_by_model), and for whole blocks that the
 * prefix cache knows per block, until one is taken for something else. It comes after: tokens of
 * the sequence that it has not seen yet (a prompt, what was replayed, what it foretold wrongly) are
 * computed when the sequence drafts next, prompts in pieces while others decode.
 *
 * A pass is made where the tokens that are likely to come of it are worth its time and that of
 * their rows in the step (struct draft_bounds); a sequence whose drafts do not pay is asked again
 * after ever more steps. Engine thread only. No allocation after open. */
#pragma once

#include <stdint.h>

#include "engine/forward/executor.h"
#include "engine/request/draft.h"

struct checkpoint;
struct draft_model;
struct error;
struct tokenizer;

enum { DRAFT_MODEL_MAX_SEQS = 32 }; /* that draft in one step */

struct draft_model_stats {
    uint64_t n_passes, n_rows; /* of them all */
    uint64_t n_found;          /* tokens whose K and V another sequence had left */
};

/* What it would take beside a model of this config, of which `context_tokens` are the longest
 * sequence: its pool has as many tokens as that one's (kv_tokens). */
int draft_model_plan(const char *path, const struct executor_config *target,
                     uint32_t context_tokens, struct executor_plan *out_plan, struct error *err);

/* Beside `target`, open with this config, whose tokens are `tokenizer`'s. *out_model is owned and
 * is closed before the target. FAILED_PRECONDITION (reason DRAFT_MISMATCH), naming both files,
 * where an id that both have is not the same token. */
int draft_model_open(const char *path, const struct executor_config *cfg, struct executor *target,
                     const struct tokenizer *tokenizer, const char *target_name,
                     struct draft_model **out_model, struct error *err);
/* From now on it drafts all that it may, whether it pays or not. */
void draft_model_set_always(struct draft_model *model);
void draft_model_close(struct draft_model *model);

const struct executor_plan *draft_model_memory(const struct draft_model *model);
/* As executor_graphs_taken(). */
uint64_t draft_model_graphs_taken(const struct draft_model *model);
/* As executor_progress_counter(). */
uint64_t draft_model_progress_counter(const struct draft_model *model);
/* Longest sequence it drafts for. */
uint32_t draft_model_context(const struct draft_model *model);
const char *draft_model_name(const struct draft_model *model);

/* As scheduler_config.propose, with the model as ctx: fills each job's seq->draft->ids and n_ids.
 * Returns the time it took. */
int64_t draft_model_propose(void *model, struct draft_job *jobs, uint32_t n_jobs,
                            const struct draft_bounds *bounds);
/* A block's content is no longer known. */
void draft_model_forget(void *model, uint32_t block);

/* 0, or the device's failure in a pass: nothing is drafted any more. */
int draft_model_health(const struct draft_model *model, struct error *err);
void draft_model_get_stats(const struct draft_model *model, struct draft_model_stats *out_stats);
