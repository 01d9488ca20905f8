/* tool_splits.h: the ways to divide a model over described groups of devices, and predictions, as
 * messages in an arena. Single-threaded. */
#pragma once

#include "base/arena.h"
#include "engine/engine_cost.h"
#include "sluice/v1/common.pb-c.h"

struct checkpoint;
struct error;
struct settings;

/* Fills plan->groups for settings->groups. INVALID_ARGUMENT names a bad description or setting;
 * other errors are those of a model that cannot be loaded in any way. */
int tool_splits_make(const struct settings *settings, struct checkpoint *ckpt, struct arena *arena,
                     Sluice__V1__Plan *plan, struct error *err);

/* Returns NULL if memory is exhausted. `tokens_s` is of all replicas and requests together. */
Sluice__V1__Prediction *tool_splits_prediction(struct arena *arena, const char *kind,
                                               const struct engine_cost *cost, double tokens_s,
                                               uint32_t n_requests, uint32_t depth_tokens);
