/* executor_private.h: the executor's state. Shared by executor_plan.c, executor_open.c,
 * executor_run.c (jobs of the ranks) and executor.c (steps) only.
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
#include "engine/forward/lane.h"
#include "engine/forward/pipeline.h"
#include "engine/forward/rank_team.h"
#include "engine/forward/stages.h"
#include "engine/load/loader.h"
#include "engine/model/model.h"
#include "engine/model/plan.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"

enum { MAX_RANKS = ENGINE_MAX_RANKS, NUMERICS_ID_BYTES = 160, COMM_BYTES = 1 << 20 };

enum job_kind {
    JOB_STEP,
    JOB_LOGITS,
    JOB_COPY_BLOCK,
    JOB_COPY_WINDOW,
    JOB_COPY_STATE,
    JOB_SAVE_STATE,
    JOB_LOAD_STATE
};

/* Rows of a step in parts, with CPU stages. `first`: the parts of all steps before it. */
struct step_parts {
    struct step_part parts[PIPELINE_MAX_PARTS];
    uint32_t n, first;
};

/* Work of one call on all ranks: a step, logits of other rows, or a copy. */
struct step_job {
    struct executor *ex;
    enum job_kind kind;
    const struct step_batch *batch; /* JOB_STEP only */
    uint32_t first_logits, n_logits;
    uint32_t from, to;               /* blocks, or state slots */
    unsigned char *host;             /* states of all ranks, one after the other */
    struct step_parts parts, before; /* parts of the step, and of the step before */
    int rc[MAX_RANKS];
    struct error errs[MAX_RANKS];
};

/* A function that runs on the ranks of a stage. */
struct stage_task {
    struct executor *ex;
    uint32_t stage;
    rank_team_fn *fn; /* gets ranks of the executor */
    void *job;
};

/* A step that is posted to the stages. */
struct executor_flight {
    struct step_job job;
    struct stage_task tasks[STAGES_MAX];
    uint32_t numbers[STAGES_MAX]; /* the job's number in the lane of each stage */
};

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
    uint32_t n_stages;                   /* that work at once: CPU stages; else 1 */
    struct rank_team *teams[STAGES_MAX]; /* threads of each stage's ranks */
    /* With several CPU stages each has a lane, whose thread is that of the stage's first rank. NULL
     * else: the first rank runs on the caller's thread. */
    struct lane *lanes[STAGES_MAX];
    struct pipeline_gate gate;  /* parts that each rank has computed, */
    struct pipeline_gate taken; /* and whose rows it has taken from the stage before */
    /* Steps in flight, in a ring of n_stages, the oldest first. The last stage gets a step only
     * once the step before it is sampled and released. */
    struct executor_flight *flights;
    uint32_t first_flight, n_flights;
    bool is_open;             /* a step is collected and not released */
    struct step_parts before; /* parts of the step that was posted last */
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

/* executor_run.c: runs a job on all ranks and waits. No step is in flight; for JOB_LOGITS the last
 * stage has none. */
int executor_run_job(struct step_job *job, struct error *err);
/* Calls fn(job, rank) for all CPU ranks of the stages from `first_stage` on, each on its thread,
 * and waits. */
void executor_run_ranks(struct executor *ex, uint32_t first_stage, rank_team_fn *fn, void *job);
/* With several CPU stages: begins a step. At most n_stages are in flight. */
void executor_post_step(struct executor *ex, const struct step_batch *batch);
/* Waits for the oldest step in flight. */
int executor_await_step(struct executor *ex, uint32_t *out_n_sample_rows, struct error *err);

/* executor_plan.c: sets up the model, the kernel sets and the plan of every rank. Opens the GPU, if
 * one is used. */
int executor_prepare(struct executor *ex, const struct checkpoint *ckpt, const struct arch *arch,
                     const struct executor_config *cfg, struct error *err);

/* executor_cost.c: fills ex->actual.cost from the plans of all ranks. */
void executor_add_costs(struct executor *ex);
