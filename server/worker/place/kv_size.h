/* kv_size.h: sizes the KV cache and checks that a load fits. Any thread. */
#pragma once

#include <stdint.h>

struct checkpoint;
struct engine_config;
struct error;
struct executor_plan;
struct memory_limit;
struct settings;

/* Returns the memory that is free for this process (memory_limit.h), less the promises to other
 * replicas. A replica uses its memory gradually, so free memory may be promised already.
 * *out_limit has the figures without the promises. */
uint64_t kv_size_available(const struct settings *settings, struct memory_limit *out_limit);

/* Returns what the manager's memory_budget leaves. Only if there is a budget:
 * settings->memory_limit is not 0. */
uint64_t kv_size_budget_left(const struct settings *settings);

/* Sets cfg->executor.kv_tokens (and max_rows, max_seqs) if the settings give no tokens. Given
 * bytes are converted to tokens. The default is a full context for each of max_concurrent
 * sequences. The default is at most half of what the replica's share of memory leaves beside the
 * weights. INVALID_ARGUMENT if the given tokens or bytes are less than a block. */
int kv_size_resolve(struct checkpoint *ckpt, const struct settings *settings,
                    struct engine_config *cfg, struct error *err);

/* RESOURCE_EXHAUSTED (reason DEVICE_MEMORY) if the sizes exceed the available memory. Default
 * sizes are checked against the replica's share. Fills *out_plan if the file is readable. */
int kv_size_check(struct checkpoint *ckpt, const struct settings *settings,
                  const struct engine_config *cfg, struct executor_plan *out_plan,
                  struct error *err);
