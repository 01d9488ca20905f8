/* engine_splits.h: the ways to divide a model over a described group of devices. A way has the
 * bytes of each rank and a predicted speed, or the reason why it is impossible. The devices need
 * not exist. Weights are not read. Any thread.
 *
 * Sizes are those of executor_plan() on the CPU of this machine. A GPU packs quantized weights
 * differently: its sizes differ by some percent. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/settings/device_spec.h"
#include "engine/engine_config.h"
#include "engine/engine_stats.h"

struct engine_splits_use {
    uint32_t tp, pp;       /* 0: all that divide the devices of the group evenly */
    uint32_t n_requests;   /* at once, over all replicas of the group; at least 1 */
    uint32_t depth_tokens; /* context of each request; at least 1 */
};

struct engine_split {
    uint32_t tp, pp;
    uint32_t n_replicas;    /* that the group has room for beside each other; CPU: 1 */
    struct error refusal;   /* why the model or the group cannot be divided so; status 0: it can */
    struct error not_built; /* why a load of this build refuses the split; status 0: it does not */
    struct executor_plan plan; /* a replica with a block of KV; only without a refusal */
    bool fits;                 /* weights, workspace and the K and V of one request */
    uint64_t missing_bytes;    /* the fullest rank's; on the CPU all ranks' */
    uint64_t kv_tokens;        /* a replica's */
    uint32_t kv_copies;        /* ranks that hold each K and V head; 1: none holds another's */
    uint32_t n_at_once;        /* requests that run at once, on all replicas */
    struct engine_cost cost;   /* a replica's */
    double tokens_s;           /* all replicas together */
};

struct engine_splits {
    struct engine_split *rows; /* owned */
    uint32_t n;
    /* `best` is the split with the most tokens_s of those that fit and that a load accepts. The
     * other also counts those that a load refuses. n: there is none. */
    uint32_t best, best_later;
};

/* `cfg` as for engine_plan(), apart from tp and pp; kv_tokens 0: what the memory leaves. The errors
 * are those of a model that cannot be loaded in any way. engine_splits_fini() in any case. */
int engine_splits_make(const struct engine_config *cfg, struct checkpoint *ckpt,
                       const struct device_spec *group, const struct engine_splits_use *use,
                       struct engine_splits *out, struct error *err);
void engine_splits_fini(struct engine_splits *splits);

/* Bytes of K and V of n_tokens in pools with such blocks. */
uint64_t engine_splits_kv_bytes(const struct executor_plan *plan,
                                const struct executor_device *sizes, uint64_t n_tokens);

/* Predicts the speed of a plan with n_seqs sequences at once on such devices. `n_cores`: of the
 * CPU, over all ranks. */
void engine_splits_predict(const struct executor_plan *plan, const struct device_spec *group,
                           uint32_t n_cores, const struct engine_config *cfg, uint32_t n_seqs,
                           uint32_t depth_tokens, struct engine_cost *out);
