/* executor_private.h: the executor's state. Shared by executor_plan.c, executor_open.c and
 * executor.c (steps) only.
 *
 * Ranks come in two forms. On the CPU alone there are pp stages of tp ranks each, in this order.
 * Each rank has a thread. With a GPU there are up to two stages of one
 * rank each, which step one after the other. The layers on the CPU, if any, come first, then the
 * layers on the GPU. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/system/cpus.h"
#include "engine/decoder/decoder.h"
#include "engine/forward/executor.h"
#include "engine/forward/pipeline.h"
#include "engine/forward/rank_team.h"
#include "engine/load/loader.h"
#include "engine/model/model.h"
#include "engine/model/plan.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"

enum { MAX_RANKS = ENGINE_MAX_RANKS, NUMERICS_ID_BYTES = 160, COMM_BYTES = 1 << 20 };

struct executor {
    struct model model;
    char *name; /* model.info.name; outlives the checkpoint */
    struct executor_plan actual;
    uint32_t n_ranks, n_cpu_ranks; /* CPU ranks come first; at most one rank is on a GPU */
    uint32_t tp;                   /* ranks of a stage */
    const struct op_table *ops[MAX_RANKS];
    struct rank_plan plans[MAX_RANKS];
    struct packed_weights weights[MAX_RANKS]; /* weights of CPU ranks */
    struct weight **device_weights;           /* weights of the GPU rank, [n_places] */
    void *device_memory;                      /* memory of device_weights */
    bool from_image; /* device_weights were loaded from a park copy (executor_keep) */
    bool is_guest;   /* devices and streams belong to another executor (executor_config.beside) */
    struct device *cpu, *gpu; /* NULL: not used */
    struct stream *streams[MAX_RANKS];
    struct comm *comms[MAX_RANKS]; /* NULL at tp 1 */
    struct decoder *decoders[MAX_RANKS];
    struct rank_team *team;    /* threads of the CPU ranks */
    struct pipeline_gate gate; /* where CPU stages wait for the stage before */
    bool mix_roles;
    bool prompts_f16; /* the GPU's rank computes prompts of quantized weights in 16 bit */
    uint32_t n_sampled;
    float *logits; /* [n_logits of the plan's steps, vocab_size] on the device of the head */
    size_t logits_bytes;
    float *host_logits;     /* [vocab_size] buffer of executor_logits() for a GPU */
    uint32_t n_logits;      /* sample rows of the last step */
    uint32_t i_kept;        /* first sample row in `logits` */
    uint32_t n_kept;        /* number of sample rows in `logits` */
    struct event *sampled;  /* GPU: recorded behind the last sample; NULL without a GPU */
    bool has_ahead;         /* executor_step_ahead() was called for the next step */
    uint64_t scratch_bytes; /* scratch of all CPU streams' threads */
    atomic_uint_fast64_t progress;
    char numerics_id[NUMERICS_ID_BYTES];
    struct error not_shared; /* why shared packed memory was not used */
    bool is_confined;
    struct cpus first_cpus; /* CPUs of the thread that runs the steps */
};

/* The rank that samples: the first of the last stage. */
static inline uint32_t head_rank(const struct executor *ex)
{
    return ex->gpu ? ex->n_ranks - 1 : ex->n_ranks - ex->tp;
}

static inline struct device *rank_device(const struct executor *ex, uint32_t r)
{
    return r < ex->n_cpu_ranks ? ex->cpu : ex->gpu;
}

/* Ranks of the CPU that a config asks for. */
static inline uint32_t executor_cpu_ranks(const struct executor_config *cfg)
{
    return cfg->tp * (cfg->pp ? cfg->pp : 1);
}

/* Threads of a CPU rank's stream. */
uint32_t executor_thread_share(const struct executor_config *cfg, uint32_t rank);

/* executor_plan.c: sets up the model, the kernel sets and the plan of every rank. Opens the GPU, if
 * one is used. */
int executor_prepare(struct executor *ex, const struct checkpoint *ckpt, const struct arch *arch,
                     const struct executor_config *cfg, struct error *err);
