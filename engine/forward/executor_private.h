/* executor_private.h: the executor's state, shared by executor_plan.c, executor_open.c and
 * executor.c (steps) alone.
 *
 * Ranks are either the tensor-parallel ranks of the CPU, which step together, or stages of one rank
 * each, which step one after the other: layers on the CPU, where there are such, then a GPU's. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/system/cpus.h"
#include "engine/forward/decoder.h"
#include "engine/forward/executor.h"
#include "engine/forward/rank_team.h"
#include "engine/load/loader.h"
#include "engine/model/model.h"
#include "engine/model/plan.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"

enum { MAX_RANKS = N_SEGMENTS, NUMERICS_ID_BYTES = 160, COMM_BYTES = 1 << 20 };

struct executor {
    struct model model;
    char *name; /* model.info.name, kept after the checkpoint is closed */
    struct executor_plan actual;
    uint32_t n_ranks, n_cpu_ranks; /* the CPU's come first; at most one is a GPU's */
    const struct op_table *ops[MAX_RANKS];
    struct rank_plan plans[MAX_RANKS];
    struct packed_weights weights[MAX_RANKS]; /* of CPU ranks */
    struct weight **device_weights;           /* of the GPU's, [n_places] */
    void *device_memory;                      /* that they lie in */
    bool from_image;                          /* they were kept (executor_keep) */
    bool is_guest;                            /* devices and streams are another executor's */
    struct device *cpu, *gpu;                 /* NULL: not used */
    struct stream *streams[MAX_RANKS];
    struct comm *comms[MAX_RANKS]; /* NULL at tp 1 */
    struct decoder *decoders[MAX_RANKS];
    struct rank_team *team; /* of CPU ranks */
    bool mix_roles;
    uint32_t n_sampled;
    float *logits; /* [n_logits of the plan's steps, vocab_size] on the device of the head */
    size_t logits_bytes;
    float *host_logits;     /* [vocab_size], of executor_logits() where those are a GPU's */
    uint32_t n_logits;      /* rows of the last step that may be had, */
    uint32_t i_kept;        /* and the first of those that logits hold, */
    uint32_t n_kept;        /* so many */
    struct event *sampled;  /* on the GPU, after the last sample; NULL without one */
    bool has_ahead;         /* executor_step_ahead() was called for the next step */
    uint64_t scratch_bytes; /* of all CPU streams' threads */
    atomic_uint_fast64_t progress;
    char numerics_id[NUMERICS_ID_BYTES];
    struct error not_shared; /* why memory that was given is not used */
    bool is_confined;
    struct cpus first_cpus; /* of the thread that steps */
};

/* The rank whose stream samples. */
static inline uint32_t head_rank(const struct executor *ex)
{
    return ex->gpu ? ex->n_ranks - 1 : 0;
}

static inline struct device *rank_device(const struct executor *ex, uint32_t r)
{
    return r < ex->n_cpu_ranks ? ex->cpu : ex->gpu;
}

/* Threads of a CPU rank's stream. */
uint32_t executor_thread_share(const struct executor_config *cfg, uint32_t rank);

/* executor_plan.c: model, kernel sets and the plan of every rank; a GPU is opened. */
int executor_prepare(struct executor *ex, const struct checkpoint *ckpt, const struct arch *arch,
                     const struct executor_config *cfg, struct error *err);
