/* draft_model.h: drafts by a second, smaller model with the same vocabulary. The draft model shares
 * the threads of its target model. Before a step it runs passes; each pass drafts one token further
 * for every drafting sequence.
 *
 * The draft model draws with the request's parameters and the random number of the position, as the
 * target model will. Greedy requests get its greedy token. With temperature, this predicts far
 * better than the greedy token. Two similar distributions mostly give the same token for the same
 * random number (inverse CDF, sample.h). Penalties count the sequence's own tokens, not the drafted
 * ones.
 *
 * K and V: its pool has the same block numbers as the target model's pool, so one block table
 * serves both. Whatever gives a sequence blocks (prefix cache and salts, choices of one prompt,
 * preemption) gives it both contents. The written positions are recorded per sequence (struct
 * draft_by_model). For whole blocks in the prefix cache they are also recorded per block, until the
 * block is reused. Tokens of the sequence that the draft model has not computed yet are computed
 * when the sequence drafts next. Examples are prompts, replayed tokens and wrong drafts. Prompts
 * are computed in pieces while others decode.
 *
 * Recurrent layers: their states have slots of their own (draft_states.h). Each drafted token that
 * is computed writes a slot, and the next step continues from that of the last accepted token. The
 * blocks of a prefix are found only up to a snapshot. A sequence that lost its state computes all
 * its tokens again. Any number of slots serves: without a free slot a draft is shorter.
 *
 * A draft model with longrope (scheduler.h) has its own border. If the target model has another
 * border or none, sequences of different lengths may share a block. They write it by turns, and
 * their drafts are worse.
 *
 * A pass runs if its expected tokens are worth its time and their rows in the step (struct
 * draft_bounds). A sequence whose drafts do not pay is tried again after ever longer pauses. Engine
 * thread only. No allocation after open. */
#pragma once

#include <stdint.h>

#include "engine/forward/executor.h"
#include "engine/request/draft.h"

struct checkpoint;
struct draft_model;
struct error;
struct tokenizer;

enum { DRAFT_MODEL_MAX_SEQS = 32 }; /* most sequences that draft in one step */

struct draft_model_stats {
    uint64_t n_passes, n_rows; /* rows of all passes */
    uint64_t n_found;          /* tokens whose K and V another sequence had written */
};

/* Memory plan of a draft model for a target model of this config. context_tokens: longest sequence
 * of the target model. The draft pool has as many tokens as the target's (kv_tokens). */
int draft_model_plan(const char *path, const struct executor_config *target,
                     uint32_t context_tokens, struct executor_plan *out_plan, struct error *err);

/* Opens the draft model for the open model `target`. cfg and tokenizer are those of the target.
 * *out_model is owned and must be closed before the target. FAILED_PRECONDITION (reason
 * DRAFT_MISMATCH) if an id of both vocabularies is not the same token; the error names both
 * files. */
int draft_model_open(const char *path, const struct executor_config *cfg, struct executor *target,
                     const struct tokenizer *tokenizer, const char *target_name,
                     struct draft_model **out_model, struct error *err);
/* From now on every sequence drafts, whether drafting pays or not. */
void draft_model_set_always(struct draft_model *model);
void draft_model_close(struct draft_model *model);

const struct executor_plan *draft_model_memory(const struct draft_model *model);
/* Like executor_graphs_taken(). */
uint64_t draft_model_graphs_taken(const struct draft_model *model);
/* Like executor_progress_counter(). */
uint64_t draft_model_progress_counter(const struct draft_model *model);
/* Returns the longest sequence for which the draft model can draft. */
uint32_t draft_model_context(const struct draft_model *model);
const char *draft_model_name(const struct draft_model *model);

/* Implements scheduler_config.propose, with the draft model as ctx: fills each job's
 * seq->draft->ids and n_ids. Returns the time taken. */
int64_t draft_model_propose(void *model, struct draft_job *jobs, uint32_t n_jobs,
                            const struct draft_bounds *bounds);
/* Implements scheduler_config.forget_block: the K and V in the block are no longer valid. */
void draft_model_forget(void *model, uint32_t block);

/* 0, or the error of the device in a pass. After an error nothing is drafted any more. */
int draft_model_health(const struct draft_model *model, struct error *err);
void draft_model_get_stats(const struct draft_model *model, struct draft_model_stats *out_stats);
