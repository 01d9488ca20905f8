/* kv_size.h: how many tokens a KV cache gets, and whether a load fits. Any thread. */
#pragma once

#include <stdint.h>

struct checkpoint;
struct engine_config;
struct error;
struct executor_plan;
struct memory_limit;
struct settings;

/* The memory that is free for this process (memory_limit.h), less the promises to other replicas.
 * A replica takes its memory as it touches it, so free memory may be promised already. *out_limit
 * has the figures without the promises. */
uint64_t kv_size_available(const struct settings *settings, struct memory_limit *out_limit);

/* What the manager's memory_budget leaves. There is one, settings->memory_limit is not 0. */
uint64_t kv_size_budget_left(const struct settings *settings);

/* Sets cfg->executor.kv_tokens (and max_rows, max_seqs) where the settings give bytes or nothing:
 * bytes are turned into tokens; by default what max_concurrent sequences of full context need, but
 * at most half of what this replica's share of the available memory leaves beside the weights.
 * INVALID_ARGUMENT where tokens or bytes that are given come to less than a block. */
int kv_size_resolve(struct checkpoint *ckpt, const struct settings *settings,
                    struct engine_config *cfg, struct error *err);

/* RESOURCE_EXHAUSTED (reason DEVICE_MEMORY) where the resolved sizes are more than is available:
 * than the share where they were chosen by memory. Fills *out_plan whenever the file allows. */
int kv_size_check(struct checkpoint *ckpt, const struct settings *settings,
                  const struct engine_config *cfg, struct executor_plan *out_plan,
                  struct error *err);
