#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/system/cpu.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/forward/executor_private.h"
#include "engine/load/loader_device.h"
#include "engine/load/loader_image.h"
#include "kernels/backend.h"
#include "kernels/thread_pool.h"

/* Allowance for the rounding of allocations. */
enum { RESERVE_SLACK = 1 << 20 };

/* Checks that the device has the memory, before anything is allocated. A memfd takes its memory
 * later, and would not fail at once. */
static int check_memory(const struct executor *ex, const struct executor_device *device,
                        uint64_t shared_bytes, uint64_t other_bytes, uint64_t free_bytes,
                        struct error *err)
{
    uint64_t own = device->weights_bytes - shared_bytes + device->kv_bytes + device->state_bytes +
                   device->workspace_bytes;
    if (own + other_bytes <= free_bytes)
        return 0;
    if (device->is_gpu && free_bytes < device->free_bytes) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s: %" PRIu64 " bytes needed (weights %" PRIu64 ", KV cache %" PRIu64
                  ", states %" PRIu64 ", workspace %" PRIu64 ", draft model %" PRIu64 "), %" PRIu64
                  " are allowed by gpu_memory, %" PRIu64 " are free; raise gpu_memory",
                  device->name, own + other_bytes, device->weights_bytes, device->kv_bytes,
                  device->state_bytes, device->workspace_bytes, other_bytes, free_bytes,
                  device->free_bytes);
        return error_reason(err, REASON_DEVICE_MEMORY);
    }
    error_set(
        err, STATUS_RESOURCE_EXHAUSTED,
        "%s%s%" PRIu64 " bytes needed (weights %" PRIu64 ", KV cache %" PRIu64 ", states %" PRIu64
        ", workspace %" PRIu64 ", draft model %" PRIu64 "), %" PRIu64 " bytes free, %" PRIu64
        " more are promised to other replicas; lower kv_tokens%s or free memory",
        ex->gpu ? device->name : "", ex->gpu ? ": " : "", own + other_bytes, device->weights_bytes,
        device->kv_bytes, device->state_bytes, device->workspace_bytes, other_bytes, free_bytes,
        device->promised_bytes, device->state_bytes ? " or state_slots" : "");
    return error_reason(err, REASON_DEVICE_MEMORY);
}

/* Pins the thread of each rank. Without lanes rank 0 has no thread; its caller's thread calls
 * executor_enter(). */
struct confine_job {
    bool has_lanes;
    struct cpus first[MAX_RANKS];
    struct error errs[MAX_RANKS];
    int rc[MAX_RANKS];
};

static void confine_rank(void *ctx, uint32_t r)
{
    struct confine_job *job = ctx;
    if (r > 0 || job->has_lanes)
        job->rc[r] = cpus_confine(&job->first[r], &job->errs[r]);
}

static int confine_threads(struct executor *ex, const struct executor_config *cfg,
                           struct error *err)
{
    struct confine_job job = {.has_lanes = ex->n_stages > 1};
    const struct cpus *at = cfg->thread_cpus;
    int rc = 0;
    for (uint32_t r = 0; !rc && r < ex->n_cpu_ranks; r++) {
        job.first[r] = *at;
        rc = ex->cpu->ops->stream_confine(ex->streams[r], at, err);
        /* With more ranks than threads, the excess ranks share the last thread's CPUs. */
        uint32_t n = executor_thread_share(cfg, r);
        if ((size_t)(at - cfg->thread_cpus) + n < cfg->n_threads)
            at += n;
    }
    if (rc)
        return rc;
    executor_run_ranks(ex, 0, confine_rank, &job);
    for (uint32_t r = 0; r < ex->n_cpu_ranks; r++)
        if (job.rc[r]) {
            *err = job.errs[r];
            return job.rc[r];
        }
    /* With lanes the calling thread only samples, while the head rests. */
    ex->first_cpus = job.first[ex->gpu ? 0 : head_rank(ex)];
    ex->is_confined = true;
    return 0;
}

static int open_cpu(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    const struct device_ops *ops = backend_cpu();
    struct device_memory memory;
    int rc = ops->open(0, &ex->cpu, err);
    if (!rc)
        rc = ops->memory(ex->cpu, &memory, err);
    if (!rc)
        rc = check_memory(ex, &ex->actual.devices[0], ex->actual.shared_bytes,
                          ex->gpu ? 0 : cfg->other_bytes, memory.free_bytes, err);
    for (uint32_t r = 0; !rc && r < ex->n_cpu_ranks; r++) {
        rc = ops->stream_create(ex->cpu, executor_thread_share(cfg, r), &ex->streams[r], err);
        if (!rc)
            ex->streams[r]->ops = ex->ops[r];
    }
    for (uint32_t r = 0; !rc && ex->tp > 1 && r < ex->n_cpu_ranks; r += ex->tp)
        rc = comm_shm_create(ex->tp, COMM_BYTES, ex->comms + r, err);
    return rc;
}

/* Logs how the GPU's kernels run, which is known once the device has a stream. */
static void log_kernels(const struct device *gpu)
{
    struct backend_module module;
    struct error unheard;
    char how[256];
    if (backend_cuda(&module, &unheard) != 0)
        return;
    module.describe(gpu, how, sizeof(how));
    log_info(LOG_EVENT("kernels"), LOG_STR("set", module.op_table->name),
             LOG_U64("device", gpu->index), LOG_STR("how", how));
}

/* Reserves all planned memory at once, except for captured steps: the driver allocates for
 * those. */
static int open_gpu(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    const struct executor_device *device = &ex->actual.devices[ex->actual.n_devices - 1];
    const struct device_ops *ops = ex->gpu->ops;
    uint64_t needed = device->weights_bytes + device->kv_bytes + device->state_bytes +
                      device->workspace_bytes - device->graph_bytes + cfg->other_bytes -
                      cfg->other_graph_bytes;
    int rc =
        check_memory(ex, device, 0, cfg->other_bytes, device->limit_bytes + cfg->other_bytes, err);
    if (!rc && ops->reserve)
        rc = ops->reserve(ex->gpu, needed + RESERVE_SLACK, err);
    if (!rc)
        rc = ops->stream_create(ex->gpu, 1, &ex->streams[ex->n_ranks - 1], err);
    if (!rc)
        log_kernels(ex->gpu);
    return rc;
}

static int open_lanes(struct executor *ex, struct error *err)
{
    int rc = 0;
    ex->flights = calloc(ex->n_stages, sizeof(*ex->flights));
    if (!ex->flights)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u stages",
                         ex->n_stages);
    for (uint32_t s = 0; !rc && s < ex->n_stages; s++)
        rc = lane_create(&ex->lanes[s], err);
    return rc;
}

/* A team of ranks for each stage. */
static int open_teams(struct executor *ex, struct error *err)
{
    uint32_t n_ranks = ex->n_cpu_ranks ? ex->n_cpu_ranks : 1;
    int rc = 0;
    ex->n_stages = ex->gpu ? 1 : n_ranks / ex->tp;
    for (uint32_t s = 0; !rc && s < ex->n_stages; s++)
        rc = rank_team_create(n_ranks / ex->n_stages, &ex->teams[s], err);
    return rc || ex->n_stages == 1 ? rc : open_lanes(ex, err);
}

static int open_devices(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    int rc = 0;
    if (ex->is_guest) {
        ex->cpu = ex->gpu ? NULL : cfg->beside->cpu;
        ex->streams[0] = cfg->beside->streams[head_rank(cfg->beside)];
        return open_teams(ex, err);
    }
    if (ex->n_cpu_ranks)
        rc = open_cpu(ex, cfg, err);
    if (!rc && ex->gpu)
        rc = open_gpu(ex, cfg, err);
    if (!rc)
        rc = open_teams(ex, err);
    if (!rc && cfg->thread_cpus && ex->n_cpu_ranks)
        rc = confine_threads(ex, cfg, err);
    return rc;
}

/* --- weights --- */

static int load_cpu(struct executor *ex, const struct executor_config *cfg,
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
    bool shares = cfg->packed_fds && cfg->n_packed_fds >= ex->n_cpu_ranks;
    for (uint32_t r = 0; !rc && r < ex->n_cpu_ranks; r += ex->tp) {
        struct error why;
        struct loader_job job = {
            .model = &ex->model,
            .ops = ex->ops[0],
            .plans = ex->plans + r,
            .n_ranks = ex->tp,
            .first_rank = r,
            .pool = pool,
            .progress = progress,
            .progress_ctx = ctx,
            .cancel = cancel,
            .rank_nodes = cfg->rank_nodes ? cfg->rank_nodes + r : NULL,
            .shared_fds = shares ? cfg->packed_fds + r : NULL,
        };
        rc = loader_load(&job, ex->weights + r, &why, err);
        if (why.status)
            ex->not_shared = why;
    }
    thread_pool_destroy(pool);
    return rc;
}

static int load_gpu(struct executor *ex, const struct executor_config *cfg,
                    executor_progress_fn *progress, void *ctx, const atomic_bool *cancel,
                    struct error *err)
{
    uint32_t r = ex->n_ranks - 1;
    const struct rank_plan *plan = &ex->plans[r];
    int rc = ex->gpu->ops->alloc(ex->gpu, plan->weights_bytes, &ex->device_memory, err);
    if (rc)
        return error_prefix(err, "weights");
    ex->device_weights = calloc(plan->n_places, sizeof(*ex->device_weights));
    if (!ex->device_weights)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u weights",
                         plan->n_places);
    struct loader_device_job job = {
        .model = &ex->model,
        .ops = ex->ops[r],
        .plan = plan,
        .device = ex->gpu,
        .memory = ex->device_memory,
        .n_threads = cfg->n_threads ? cfg->n_threads : (uint32_t)cpu_count(),
        .i_rank = r,
        .progress = progress,
        .progress_ctx = ctx,
        .cancel = cancel,
    };
    uint32_t i = ex->n_cpu_ranks; /* index of the park copy's memfd, if there is one */
    bool has_image = cfg->packed_fds && cfg->n_packed_fds > i;
    if (has_image && loader_image_check(cfg->packed_fds[i], plan, &ex->not_shared) == 0) {
        ex->from_image = true;
        return loader_image_load(&job, cfg->packed_fds[i], ex->device_weights, err);
    }
    return loader_device_load(&job, ex->device_weights, err);
}

static int load_weights(struct executor *ex, const struct executor_config *cfg,
                        executor_progress_fn *progress, void *ctx, const atomic_bool *cancel,
                        struct error *err)
{
    int rc = 0;
    if (ex->n_cpu_ranks)
        rc = load_cpu(ex, cfg, progress, ctx, cancel, err);
    if (!rc && ex->gpu)
        rc = load_gpu(ex, cfg, progress, ctx, cancel, err);
    return rc;
}

static int make_decoders(struct executor *ex, struct error *err)
{
    void *logits;
    uint32_t head = head_rank(ex);
    struct device *device = rank_device(ex, head);
    ex->logits_bytes =
        (size_t)ex->plans[0].steps.n_logits * ex->model.shape.vocab_size * sizeof(float);
    int rc = device->ops->alloc(device, ex->logits_bytes, &logits, err);
    if (rc)
        return error_prefix(err, "logits");
    ex->logits = logits;
    for (uint32_t r = 0; !rc && r < ex->n_ranks; r++) {
        bool on_device = r >= ex->n_cpu_ranks;
        ex->plans[r].rank.device = rank_device(ex, r);
        ex->plans[r].rank.comm = ex->comms[r];
        if (ex->ops[r]->stream_reserve)
            rc = ex->ops[r]->stream_reserve(ex->streams[r], &ex->plans[r].needs, err);
        if (rc)
            return rc;
        struct decoder_config cfg = {
            .model = &ex->model,
            .plan = &ex->plans[r],
            .weights = on_device ? NULL : &ex->weights[r],
            .device_weights = on_device ? ex->device_weights : NULL,
            .stream = ex->streams[r],
            .mix_roles = ex->mix_roles,
            .prompts_f16 = ex->prompts_f16 && on_device,
            .logits = ex->logits,
            .progress = ex->plans[r].rank.index ? NULL : &ex->progress,
        };
        rc = decoder_create(&cfg, &ex->decoders[r], err);
    }
    return rc;
}

/* Replaces the planned sizes by the allocated ones. */
static void add_up_taken(struct executor *ex)
{
    struct executor_plan *actual = &ex->actual;
    actual->weights_bytes = actual->kv_bytes = actual->huge_page_bytes = 0;
    actual->state_bytes = 0;
    actual->shared_bytes = 0;
    actual->workspace_bytes = ex->logits_bytes + ex->scratch_bytes;
    if (ex->tp > 1)
        actual->workspace_bytes += 2 * (uint64_t)ex->n_cpu_ranks * COMM_BYTES;
    for (uint32_t r = 0; r < ex->n_ranks; r++) {
        struct decoder_taken taken;
        decoder_get_taken(ex->decoders[r], &taken);
        bool on_device = r >= ex->n_cpu_ranks;
        actual->weights_bytes += on_device ? ex->plans[r].weights_bytes : ex->weights[r].n_bytes;
        actual->huge_page_bytes += ex->weights[r].huge_bytes;
        if (ex->weights[r].origin == LOADER_MAPPED)
            actual->shared_bytes += ex->weights[r].n_bytes;
        actual->kv_bytes += taken.kv_bytes;
        actual->state_bytes += taken.state_bytes;
        actual->workspace_bytes += taken.workspace_bytes;
        if (ex->ops[r]->stream_bytes)
            actual->workspace_bytes += ex->ops[r]->stream_bytes(&ex->plans[r].needs);
        actual->workspace_bytes += ex->plans[r].graph_bytes;
    }
}

/* Describes what else the bits depend on. A GPU's tensor cores add floats in the order of their
 * generation. */
static void describe_numerics(const struct executor *ex, const struct executor_config *cfg,
                              char *out, size_t n_bytes)
{
    struct device_description device = {.compute_capability = "?"};
    struct error ignored;
    out[0] = '\0';
    if (!ex->gpu)
        return;
    if (ex->gpu->ops->describe)
        ex->gpu->ops->describe(ex->gpu, &device, &ignored);
    bool prompts_f16 = ex->plans[ex->n_ranks - 1].needs.widened_n > 0;
    snprintf(out, n_bytes, "-sm%s%s%s%s", device.compute_capability,
             cfg->store == WEIGHT_STORE_INT8 ? "-int8"
             : cfg->store == WEIGHT_STORE_F8 ? "-fp8"
                                             : "",
             prompts_f16 ? "-p16" : "", ex->mix_roles ? "-mixed" : "");
}

/* Copies what must outlive the checkpoint. */
static int keep_info(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    ex->name = strdup(ex->model.info.name);
    if (!ex->name)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the model's name");
    ex->model.info.name = ex->name;
    ex->model.ckpt = NULL;
    const char *head = rank_device(ex, head_rank(ex))->ops->name;
    char how[48]; /* further parts of the numerics id */
    describe_numerics(ex, cfg, how, sizeof(how));
    const char *numerics = ex->ops[head_rank(ex)]->numerics;
    if (ex->gpu && ex->n_cpu_ranks)
        snprintf(ex->numerics_id, sizeof(ex->numerics_id), "%s/%s+%s/%s-%u%s/kv-%s/%s",
                 ex->cpu->ops->name, ex->ops[0]->numerics, head, numerics,
                 ex->plans[ex->n_ranks - 1].split.n_layers, how, dtype_name(cfg->kv_dtype),
                 SLUICE_VERSION);
    else
        snprintf(ex->numerics_id, sizeof(ex->numerics_id), "%s/%s%s/kv-%s/%s", head, numerics, how,
                 dtype_name(cfg->kv_dtype), SLUICE_VERSION);
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
    int rc = executor_prepare(ex, ckpt, arch, cfg, err);
    if (!rc)
        rc = open_devices(ex, cfg, err);
    if (!rc)
        rc = load_weights(ex, cfg, progress, ctx, cancel, err);
    if (!rc)
        rc = make_decoders(ex, err);
    if (!rc && ex->gpu)
        rc = ex->gpu->ops->event_create(ex->gpu, &ex->sampled, err);
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

static void close_rank(struct executor *ex, uint32_t r)
{
    comm_destroy(ex->comms[r]);
    if (ex->streams[r] && !ex->is_guest)
        rank_device(ex, r)->ops->stream_destroy(ex->streams[r]);
    if (r < ex->n_cpu_ranks)
        loader_unmap(&ex->weights[r]);
    else if (ex->device_weights)
        loader_device_unload(ex->ops[r], &ex->plans[r], ex->device_weights);
    plan_rank_fini(&ex->plans[r]);
}

void executor_close(struct executor *ex)
{
    struct error ignored;
    if (!ex)
        return;
    while (ex->n_flights) /* its last stages wait for the caller */
        (void)executor_collect(ex, &ignored);
    for (uint32_t s = 0; s < STAGES_MAX; s++)
        lane_destroy(ex->lanes[s]);
    for (uint32_t s = 0; s < STAGES_MAX; s++)
        rank_team_destroy(ex->teams[s]);
    /* Queued work reads memory that is freed now. */
    if (ex->gpu && ex->n_ranks && ex->streams[ex->n_ranks - 1])
        (void)ex->gpu->ops->stream_sync(ex->streams[ex->n_ranks - 1], &ignored);
    for (uint32_t r = 0; r < ex->n_ranks; r++)
        decoder_destroy(ex->decoders[r]);
    if (ex->gpu && ex->sampled)
        ex->gpu->ops->event_destroy(ex->sampled);
    struct device *head = ex->n_ranks ? rank_device(ex, head_rank(ex)) : NULL;
    if (ex->logits && head)
        head->ops->free(head, ex->logits, ex->logits_bytes);
    for (uint32_t r = 0; r < ex->n_ranks; r++)
        close_rank(ex, r);
    free(ex->device_weights);
    if (ex->gpu && ex->device_memory)
        ex->gpu->ops->free(ex->gpu, ex->device_memory, ex->plans[ex->n_ranks - 1].weights_bytes);
    if (ex->cpu && !ex->is_guest)
        ex->cpu->ops->close(ex->cpu);
    if (ex->gpu && !ex->is_guest)
        ex->gpu->ops->close(ex->gpu);
    model_fini(&ex->model);
    free(ex->host_logits);
    free(ex->flights);
    free(ex->name);
    free(ex);
}
