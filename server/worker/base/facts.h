/* facts.h: what a model is, as the wire tells it (sluice.v1.ModelInfo). Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "sluice/v1/common.pb-c.h"

struct checkpoint;
struct error;
struct model_info;
struct tokenizer;

/* What is served, where it is less than the file offers; zeros where it is not known. */
struct facts_limits {
    uint32_t context_tokens, max_concurrent, max_queued;
    uint32_t max_input_tokens, max_total_tokens;
    bool chat; /* there is a chat template that renders */
};

/* Everything in *out_info is in the arena. tok, model: NULL where they cannot be had. */
int facts_model_info(struct arena *arena, const struct checkpoint *ckpt,
                     const struct tokenizer *tok, const struct model_info *model,
                     const struct facts_limits *limits, Sluice__V1__ModelInfo **out_info,
                     struct error *err);

/* FAILED_PRECONDITION (reason MODEL_FILE_CHANGED) where the checkpoint's digest is not `hex`; an
 * empty one matches every file. */
int facts_check_digest(const struct checkpoint *ckpt, const char *hex, struct error *err);
