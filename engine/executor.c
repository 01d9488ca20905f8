#include "engine/executor.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/cpus.h"
#include "base/error.h"
#include "engine/decoder.h"
#include "engine/executor_arch.h"
#include "engine/format/checkpoint.h"
#include "engine/loader.h"
#include "engine/loader_share.h"
#include "engine/model.h"
#include "engine/plan.h"
#include "engine/rank_team.h"
#include "engine/step.h"
#include "kernels/backend.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

enum { MAX_RANKS = N_SEGMENTS, NUMERICS_ID_BYTES = 160, COMM_BYTES = 1 << 20 };

struct executor {
    struct model model;
    char *name; /* model.info.name, kept after the checkpoint is closed */
    const struct op_table *ops;
    struct executor_plan actual;
    uint32_t n_ranks;
    struct rank_plan plans[MAX_RANKS];
    struct packed_weights weights[MAX_RANKS];
    bool is_guest; /* device and stream are another executor's */
    struct device *device;
    struct stream *streams[MAX_RANKS];
    struct comm *comms[MAX_RANKS]; /* NULL at tp 1 */
    struct decoder *decoders[MAX_RANKS];
    struct rank_team *team;
    uint32_t n_sampled;
    float *logits; /* [max_logits, vocab_size] on the device */
    size_t logits_bytes;
    uint32_t n_logits;      /* rows of the last step */
    uint64_t scratch_bytes; /* of all streams' threads */
    atomic_uint_fast64_t progress;
    char numerics_id[NUMERICS_ID_BYTES];
    struct error not_shared; /* why memory that was given is not used */
    bool is_confined;
    struct cpus first_cpus; /* of the thread that steps */
};

/* --- planning --- */

static int check_config(const struct executor_config *cfg, struct error *err)
{
    if (cfg->tp != 1 && cfg->tp != 2 && cfg->tp != 4 && cfg->tp != 8)
        return error_field(err, "tp", "%u is not one of 1, 2, 4, 8", cfg->tp);
    if (cfg->beside && cfg->tp != 1)
        return error_field(err, "tp", "%u ranks cannot run on the first rank of another model",
                           cfg->tp);
    return 0;
}

/* A stream has one kernel set. */
static int check_guest(const struct executor *ex, const struct executor_config *cfg,
                       struct error *err)
{
    if (!cfg->beside || cfg->beside->ops == ex->ops)
        return 0;
    return error_field(err, "kernels", "%s are not those of the model beside (%s)", ex->ops->name,
                       cfg->beside->ops->name);
}

/* Threads of a rank's stream. */
static uint32_t thread_share(const struct executor_config *cfg, uint32_t rank)
{
    uint32_t n_threads = cfg->n_threads ? cfg->n_threads : (uint32_t)cpu_count();
    uint32_t share = n_threads / cfg->tp + (rank < n_threads % cfg->tp);
    return share ? share : 1;
}

/* Model, kernel set and the plan of every rank. */
static int prepare(struct executor *ex, const struct checkpoint *ckpt, const struct arch *arch,
                   const struct executor_config *cfg, struct error *err)
{
    struct step_shape steps;
    uint32_t context;
    int rc = check_config(cfg, err);
    if (!rc)
        rc = op_table_cpu(cfg->kernels ? cfg->kernels : "auto", &ex->ops, err);
    if (!rc)
        rc = check_guest(ex, cfg, err);
    if (!rc)
        rc = model_init(&ex->model, ckpt, arch, err);
    if (!rc)
        rc = plan_steps(&ex->model.shape, cfg, &steps, &context, err);
    if (rc)
        return rc;
    for (uint32_t r = 0; r < cfg->tp; r++) {
        struct rank rank = {.index = r, .tp = cfg->tp, .n_stages = 1};
        ex->n_ranks = r + 1;
        rc = rank_plan_init(&ex->plans[r], &ex->model, ex->ops, &rank, &steps, err);
        if (rc)
            return rc;
        ex->actual.weights_bytes += ex->plans[r].weights_bytes;
        ex->actual.kv_bytes += ex->plans[r].kv_bytes;
        ex->actual.workspace_bytes += ex->plans[r].workspace_bytes;
        if (ex->ops->scratch_bytes && !cfg->beside)
            ex->scratch_bytes +=
                thread_share(cfg, r) *
                ex->ops->scratch_bytes(ex->model.shape.vocab_size, ex->model.shape.head_dim);
    }
    ex->actual.workspace_bytes += ex->scratch_bytes;
    if (cfg->tp > 1)
        ex->actual.workspace_bytes += 2 * (uint64_t)cfg->tp * COMM_BYTES;
    struct error why;
    if (cfg->packed_fds &&
        loader_share_look(cfg->packed_fds, ex->plans, ex->n_ranks, &why) == LOADER_SHARE_MAP)
        ex->actual.shared_bytes = ex->actual.weights_bytes;
    ex->n_sampled = cfg->n_sampled && cfg->n_sampled < ex->model.shape.vocab_size
                        ? cfg->n_sampled
                        : ex->model.shape.vocab_size;
    ex->actual.n_blocks = steps.n_blocks;
    ex->actual.kv_tokens = (uint64_t)steps.n_blocks * steps.block_size;
    ex->actual.context_tokens = context;
    return 0;
}

int executor_plan(struct checkpoint *ckpt, const struct executor_config *cfg,
                  struct executor_plan *out_plan, struct error *err)
{
    struct executor *ex = calloc(1, sizeof(*ex));
    if (!ex)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a plan");
    int rc = prepare(ex, ckpt, NULL, cfg, err);
    if (!rc)
        *out_plan = ex->actual;
    executor_close(ex);
    return rc;
}

/* --- opening --- */

/* Fails before anything is taken where the device has not the memory: a memfd would not. */
static int check_memory(const struct executor *ex, uint64_t other_bytes, struct error *err)
{
    struct device_memory memory;
    const struct executor_plan *p = &ex->actual;
    uint64_t own = p->weights_bytes - p->shared_bytes + p->kv_bytes + p->workspace_bytes;
    int rc = ex->device->ops->memory(ex->device, &memory, err);
    if (rc || own + other_bytes <= memory.free_bytes)
        return rc;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%" PRIu64 " bytes needed (weights %" PRIu64 ", KV cache %" PRIu64
              ", workspace %" PRIu64 ", draft model %" PRIu64 "), %" PRIu64 " bytes free",
              own + other_bytes, p->weights_bytes, p->kv_bytes, p->workspace_bytes, other_bytes,
              memory.free_bytes);
    return error_reason(err, "DEVICE_MEMORY");
}

/* A rank's own thread; rank 0's confines itself in executor_enter(). */
struct confine_job {
    struct cpus first[MAX_RANKS];
    struct error errs[MAX_RANKS];
    int rc[MAX_RANKS];
};

static void confine_rank(void *ctx, uint32_t r)
{
    struct confine_job *job = ctx;
    if (r > 0)
        job->rc[r] = cpus_confine(&job->first[r], &job->errs[r]);
}

static int confine(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    struct confine_job job = {.rc = {0}};
    const struct cpus *at = cfg->thread_cpus;
    int rc = 0;
    for (uint32_t r = 0; !rc && r < ex->n_ranks; r++) {
        job.first[r] = *at;
        rc = ex->device->ops->stream_confine(ex->streams[r], at, err);
        /* More ranks than threads: those beyond are where the last thread is. */
        uint32_t n = thread_share(cfg, r);
        if ((size_t)(at - cfg->thread_cpus) + n < cfg->n_threads)
            at += n;
    }
    if (rc)
        return rc;
    rank_team_run(ex->team, confine_rank, &job);
    for (uint32_t r = 0; r < ex->n_ranks; r++)
        if (job.rc[r]) {
            *err = job.errs[r];
            return job.rc[r];
        }
    ex->first_cpus = job.first[0];
    ex->is_confined = true;
    return 0;
}

static int open_device(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    const struct device_ops *ops = backend_cpu();
    if (cfg->beside) {
        ex->is_guest = true;
        ex->device = cfg->beside->device;
        ex->streams[0] = cfg->beside->streams[0];
        return rank_team_create(1, &ex->team, err);
    }
    int rc = ops->open(0, &ex->device, err);
    if (!rc)
        rc = check_memory(ex, cfg->other_bytes, err);
    for (uint32_t r = 0; !rc && r < ex->n_ranks; r++) {
        rc = ops->stream_create(ex->device, thread_share(cfg, r), &ex->streams[r], err);
        if (!rc)
            ex->streams[r]->ops = ex->ops;
    }
    if (!rc && ex->n_ranks > 1)
        rc = comm_shm_create(ex->n_ranks, COMM_BYTES, ex->comms, err);
    if (!rc)
        rc = rank_team_create(ex->n_ranks, &ex->team, err);
    if (!rc && cfg->thread_cpus)
        rc = confine(ex, cfg, err);
    return rc;
}

static int load(struct executor *ex, const struct executor_config *cfg,
                executor_progress_fn *progress, void *ctx, const atomic_bool *cancel,
                struct error *err)
{
    struct thread_pool *pool = NULL;
    uint32_t n_threads = cfg->n_threads ? cfg->n_threads : (uint32_t)cpu_count();
    int rc = thread_pool_create(n_threads, &pool, err);
    if (!rc && cfg->thread_cpus)
        rc = thread_pool_confine(pool, cfg->thread_cpus, err);
    if (rc) {
        thread_pool_destroy(pool);
        return rc;
    }
    struct loader_job job = {
        .model = &ex->model,
        .ops = ex->ops,
        .plans = ex->plans,
        .n_ranks = ex->n_ranks,
        .pool = pool,
        .progress = progress,
        .progress_ctx = ctx,
        .cancel = cancel,
        .rank_nodes = cfg->rank_nodes,
        .shared_fds = cfg->packed_fds,
    };
    rc = loader_load(&job, ex->weights, &ex->not_shared, err);
    thread_pool_destroy(pool);
    return rc;
}

static int make_decoders(struct executor *ex, struct error *err)
{
    void *logits;
    ex->logits_bytes =
        (size_t)ex->plans[0].steps.max_logits * ex->model.shape.vocab_size * sizeof(float);
    int rc = ex->device->ops->alloc(ex->device, ex->logits_bytes, &logits, err);
    if (rc)
        return error_prefix(err, "logits");
    ex->logits = logits;
    for (uint32_t r = 0; !rc && r < ex->n_ranks; r++) {
        ex->plans[r].rank.device = ex->device;
        ex->plans[r].rank.comm = ex->comms[r];
        struct decoder_config cfg = {
            .model = &ex->model,
            .plan = &ex->plans[r],
            .weights = &ex->weights[r],
            .stream = ex->streams[r],
            .logits = ex->logits,
            .progress = r == 0 ? &ex->progress : NULL,
        };
        rc = decoder_create(&cfg, &ex->decoders[r], err);
    }
    return rc;
}

/* What was planned gives way to what was really taken. */
static void add_up_taken(struct executor *ex)
{
    struct executor_plan *actual = &ex->actual;
    actual->weights_bytes = actual->kv_bytes = actual->huge_page_bytes = 0;
    actual->shared_bytes = 0;
    actual->workspace_bytes = ex->logits_bytes + ex->scratch_bytes;
    if (ex->n_ranks > 1)
        actual->workspace_bytes += 2 * (uint64_t)ex->n_ranks * COMM_BYTES;
    for (uint32_t r = 0; r < ex->n_ranks; r++) {
        uint64_t kv_bytes, workspace_bytes;
        decoder_get_taken(ex->decoders[r], &kv_bytes, &workspace_bytes);
        actual->weights_bytes += ex->weights[r].n_bytes;
        actual->huge_page_bytes += ex->weights[r].huge_bytes;
        if (ex->weights[r].origin == LOADER_MAPPED)
            actual->shared_bytes += ex->weights[r].n_bytes;
        actual->kv_bytes += kv_bytes;
        actual->workspace_bytes += workspace_bytes;
    }
}

/* Copies what outlives the checkpoint. */
static int keep_info(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    ex->name = strdup(ex->model.info.name);
    if (!ex->name)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the model's name");
    ex->model.info.name = ex->name;
    ex->model.ckpt = NULL;
    snprintf(ex->numerics_id, sizeof(ex->numerics_id), "%s/%s/kv-%s/%s", ex->device->ops->name,
             ex->ops->numerics, dtype_name(cfg->kv_dtype), SLUICE_VERSION);
    add_up_taken(ex);
    return 0;
}

int executor_open_arch(struct checkpoint *ckpt, const struct arch *arch,
                       const struct executor_config *cfg, executor_progress_fn *progress, void *ctx,
                       const atomic_bool *cancel, struct executor **out_executor, struct error *err)
{
    struct executor *ex = calloc(1, sizeof(*ex));
    if (!ex)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for an executor");
    int rc = prepare(ex, ckpt, arch, cfg, err);
    if (!rc)
        rc = open_device(ex, cfg, err);
    if (!rc)
        rc = load(ex, cfg, progress, ctx, cancel, err);
    if (!rc)
        rc = make_decoders(ex, err);
    if (!rc)
        rc = keep_info(ex, cfg, err);
    if (rc) {
        executor_close(ex);
        return rc;
    }
    *out_executor = ex;
    return 0;
}

int executor_open(struct checkpoint *ckpt, const struct executor_config *cfg,
                  executor_progress_fn *progress, void *ctx, const atomic_bool *cancel,
                  struct executor **out_executor, struct error *err)
{
    return executor_open_arch(ckpt, NULL, cfg, progress, ctx, cancel, out_executor, err);
}

void executor_close(struct executor *ex)
{
    if (!ex)
        return;
    rank_team_destroy(ex->team);
    for (uint32_t r = 0; r < ex->n_ranks; r++)
        decoder_destroy(ex->decoders[r]);
    if (ex->logits)
        ex->device->ops->free(ex->device, ex->logits, ex->logits_bytes);
    for (uint32_t r = 0; r < ex->n_ranks; r++) {
        comm_destroy(ex->comms[r]);
        if (ex->streams[r] && !ex->is_guest)
            ex->device->ops->stream_destroy(ex->streams[r]);
        loader_unmap(&ex->weights[r]);
        rank_plan_fini(&ex->plans[r]);
    }
    if (ex->device && !ex->is_guest)
        ex->device->ops->close(ex->device);
    model_fini(&ex->model);
    free(ex->name);
    free(ex);
}

const struct model_info *executor_model_info(const struct executor *ex)
{
    return &ex->model.info;
}

const struct executor_plan *executor_actual(const struct executor *ex)
{
    return &ex->actual;
}

void executor_get_packed(const struct executor *ex, struct executor_packed *out_packed)
{
    *out_packed = (struct executor_packed){
        .n_ranks = ex->n_ranks,
        .mapped = ex->weights[0].origin == LOADER_MAPPED,
        .why = ex->not_shared.status ? ex->not_shared.message : "",
    };
    for (uint32_t r = 0; r < ex->n_ranks; r++) {
        out_packed->fds[r] = ex->weights[r].fd;
        out_packed->n_bytes[r] = ex->weights[r].n_bytes;
    }
}

const char *executor_numerics_id(const struct executor *ex)
{
    return ex->numerics_id;
}

/* --- stepping --- */

struct step_job {
    struct executor *ex;
    const struct step_batch *batch;
    uint32_t from, to; /* batch NULL: copy a block */
    int rc[MAX_RANKS];
    struct error errs[MAX_RANKS];
};

static void run_rank(void *ctx, uint32_t r)
{
    struct step_job *job = ctx;
    struct decoder *dec = job->ex->decoders[r];
    if (job->batch)
        job->rc[r] = decoder_step(dec, job->batch, &job->errs[r]);
    else
        job->rc[r] = decoder_copy_block(dec, job->from, job->to, &job->errs[r]);
}

static int run_job(struct step_job *job, struct error *err)
{
    for (uint32_t r = 0; r < job->ex->n_ranks; r++) {
        job->rc[r] = 0;
        error_clear(&job->errs[r]);
    }
    rank_team_run(job->ex->team, run_rank, job);
    for (uint32_t r = 0; r < job->ex->n_ranks; r++) {
        if (job->rc[r]) {
            *err = job->errs[r];
            return job->rc[r];
        }
    }
    return 0;
}

/* Every number an op would use as an index. A bad one is the scheduler's bug, and would be a write
 * out of bounds on every rank. */
static int check_batch(const struct executor *ex, const struct step_batch *batch, struct error *err)
{
    const struct step_shape *steps = &ex->plans[0].steps;
    uint32_t n_slots = steps->n_blocks * steps->block_size;
    if (!batch->n_rows || batch->n_rows > steps->max_rows || !batch->n_seqs ||
        batch->n_seqs > steps->max_seqs || batch->n_sample_rows > steps->max_logits ||
        batch->limits.max_blocks_per_seq > steps->max_blocks_per_seq)
        return error_set(err, STATUS_INTERNAL,
                         "step: %u rows of %u sequences, %u sampled, tables of %u: limits %u, %u, "
                         "%u, %u",
                         batch->n_rows, batch->n_seqs, batch->n_sample_rows,
                         batch->limits.max_blocks_per_seq, steps->max_rows, steps->max_seqs,
                         steps->max_logits, steps->max_blocks_per_seq);
    if (batch->seq_start[0] != 0 || batch->seq_start[batch->n_seqs] != batch->n_rows)
        return error_set(err, STATUS_INTERNAL, "step: sequences cover rows %u..%u of %u",
                         batch->seq_start[0], batch->seq_start[batch->n_seqs], batch->n_rows);
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        uint32_t begin = batch->seq_start[s], end = batch->seq_start[s + 1];
        if (begin >= end || end > batch->n_rows ||
            batch->positions[end - 1] >= ex->actual.context_tokens)
            return error_set(err, STATUS_INTERNAL, "step: sequence %u: rows %u..%u", s, begin, end);
        uint32_t n_blocks = batch->positions[end - 1] / steps->block_size + 1;
        const uint32_t *table = batch->block_tables + (size_t)s * batch->limits.max_blocks_per_seq;
        for (uint32_t b = 0; b < n_blocks; b++)
            if (table[b] >= steps->n_blocks)
                return error_set(err, STATUS_INTERNAL, "step: sequence %u: block %u of %u", s,
                                 table[b], steps->n_blocks);
        for (uint32_t r = begin; r < end; r++)
            if (batch->seq_of_row[r] != s || batch->kv_slots[r] >= n_slots ||
                batch->token_ids[r] >= ex->model.shape.vocab_size ||
                batch->positions[r] != batch->positions[begin] + (r - begin))
                return error_set(err, STATUS_INTERNAL,
                                 "step: row %u: sequence %u, position %u, slot %u, token %u", r,
                                 batch->seq_of_row[r], batch->positions[r], batch->kv_slots[r],
                                 batch->token_ids[r]);
    }
    for (uint32_t i = 0; i < batch->n_sample_rows; i++)
        if (batch->sample_rows[i] >= batch->n_rows)
            return error_set(err, STATUS_INTERNAL, "step: sample row %u of %u",
                             batch->sample_rows[i], batch->n_rows);
    return 0;
}

int executor_enter(const struct executor *ex, struct error *err)
{
    return ex->is_confined ? cpus_confine(&ex->first_cpus, err) : 0;
}

int executor_step(struct executor *ex, const struct step_batch *batch, struct error *err)
{
    struct step_job job;
    ex->n_logits = 0;
    int rc = check_batch(ex, batch, err);
    if (rc)
        return rc;
    job.ex = ex;
    job.batch = batch;
    rc = run_job(&job, err);
    if (!rc)
        ex->n_logits = batch->n_sample_rows;
    return rc;
}

const float *executor_logits(const struct executor *ex, uint32_t i_sample_row)
{
    return ex->logits + (size_t)i_sample_row * ex->model.shape.vocab_size;
}

uint64_t executor_progress_counter(const struct executor *ex)
{
    return atomic_load(&ex->progress);
}

int executor_sample(struct executor *ex, uint32_t first, uint32_t n,
                    const struct sample_params *params, struct sample_result *results,
                    struct error *err)
{
    if (first > ex->n_logits || n > ex->n_logits - first)
        return error_set(err, STATUS_INTERNAL, "sampling %u rows from %u on, of %u", n, first,
                         ex->n_logits);
    uint32_t vocab = ex->model.shape.vocab_size;
    uint32_t n_together = ex->n_sampled == vocab ? n : 1; /* a part of a row is a row alone */
    for (uint32_t i = 0; i < n; i += n_together) {
        struct tensor logits = tensor_view(ex->logits + (size_t)(first + i) * vocab, DTYPE_F32,
                                           n_together, ex->n_sampled);
        int rc = op_sample(ex->streams[0], &logits, params + i, results + i);
        if (rc)
            return error_set(err, rc, "sampling %u rows failed", n);
    }
    return ex->device->ops->stream_sync(ex->streams[0], err);
}

int executor_copy_block(struct executor *ex, uint32_t from, uint32_t to, struct error *err)
{
    struct step_job job;
    if (from >= ex->actual.n_blocks || to >= ex->actual.n_blocks)
        return error_set(err, STATUS_INTERNAL, "copy of KV block %u to %u of %u", from, to,
                         ex->actual.n_blocks);
    job.ex = ex;
    job.batch = NULL;
    job.from = from;
    job.to = to;
    return run_job(&job, err);
}
