/* kv_size.h: how many tokens a KV cache gets. Any thread. */
#pragma once

struct checkpoint;
struct engine_config;
struct error;
struct settings;

/* Sets cfg->executor.kv_tokens (and max_rows, max_seqs) where the settings give bytes or nothing:
 * bytes are turned into tokens; by default what max_concurrent sequences of full context need, but
 * at most half of the memory that is left beside the weights, as engine_open() chooses. */
int kv_size_resolve(struct checkpoint *ckpt, const struct settings *settings,
                    struct engine_config *cfg, struct error *err);
