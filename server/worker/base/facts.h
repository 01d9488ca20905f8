/* facts.h: the facts of a model as a sluice.v1.ModelInfo. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "sluice/v1/common.pb-c.h"

struct checkpoint;
struct error;
struct model_info;
struct tokenizer;

/* Limits of this server where they are below the file's; zero if unknown. */
struct facts_limits {
    uint32_t context_tokens, max_concurrent, max_queued;
    uint32_t max_input_tokens, max_total_tokens;
    bool chat;        /* the model has a chat template that compiles */
    bool no_sampling; /* the load ignores the default sampling of the model's files */
};

/* Everything in *out_info is in the arena. tok, model: NULL if not available. */
int facts_model_info(struct arena *arena, const struct checkpoint *ckpt,
                     const struct tokenizer *tok, const struct model_info *model,
                     const struct facts_limits *limits, Sluice__V1__ModelInfo **out_info,
                     struct error *err);

/* FAILED_PRECONDITION (reason MODEL_FILE_CHANGED) if the checkpoint's digest is not `hex`. An
 * empty `hex` matches every file. */
int facts_check_digest(const struct checkpoint *ckpt, const char *hex, struct error *err);
