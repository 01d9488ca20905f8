#include "server/worker/kv_size.h"

#include <inttypes.h>

#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/process.h"
#include "server/worker/settings.h"

int kv_size_resolve(struct checkpoint *ckpt, const struct settings *settings,
                    struct engine_config *cfg, struct error *err)
{
    struct executor_config *ex = &cfg->executor;
    struct executor_config probe;
    struct executor_plan plan;
    uint64_t total_bytes, free_bytes;
    ex->max_rows = cfg->max_batch_tokens;
    ex->max_seqs = cfg->max_concurrent;
    if (ex->kv_tokens)
        return 0;
    probe = *ex;
    probe.kv_tokens = probe.kv_block_size;
    int rc = executor_plan(ckpt, &probe, &plan, err);
    if (rc)
        return rc;
    uint64_t token_bytes = plan.kv_bytes / plan.kv_tokens;
    if (settings->kv_bytes) {
        ex->kv_tokens = settings->kv_bytes / token_bytes;
        if (ex->kv_tokens >= ex->kv_block_size)
            return 0;
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--kv-bytes: %" PRIu64 " bytes hold less than one block of %" PRIu32
                         " tokens (%" PRIu64 " bytes)",
                         settings->kv_bytes, ex->kv_block_size, token_bytes * ex->kv_block_size);
    }
    process_machine_memory(&total_bytes, &free_bytes);
    uint64_t taken = plan.weights_bytes + plan.workspace_bytes;
    uint64_t fits = (free_bytes > taken ? (free_bytes - taken) / 2 : 0) / token_bytes;
    ex->kv_tokens = (uint64_t)ex->max_seqs * plan.context_tokens;
    if (ex->kv_tokens > fits)
        ex->kv_tokens = fits > ex->kv_block_size ? fits : ex->kv_block_size;
    return 0;
}
