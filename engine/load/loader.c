#include "engine/load/loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/memory_policy.h"
#include "engine/format/checkpoint.h"
#include "engine/load/loader_memory.h"
#include "engine/load/loader_rows.h"
#include "engine/load/loader_share.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

/* Approximate raw bytes of a chunk: large enough for the disk, small enough for the cache. */
enum { CHUNK_BYTES = 256 * 1024 };

/* Time limit for requesting huge pages: this, plus a quarter of a nanosecond per byte. Requests are
 * made in steps. */
enum { HUGE_MIN_NS = 50000000 };
#define HUGE_STEP_BYTES (16ULL << 20)

/* Memory of all threads for rows of transposed weights. */
#define TRANSPOSED_BYTES (24ULL << 20)

#define NO_PLACE UINT32_MAX

/* Rows of one weight, or of two weights whose rows alternate in the file, that adjacent ranks need.
 * A thread reads the rows once and packs them. */
struct task {
    uint32_t rank, n_ranks, i_place, i_other; /* i_other: NO_PLACE for one weight */
    uint32_t row_begin, n_rows;               /* counted within the rank */
};

struct load {
    const struct loader_job *job;
    struct loader_memory *memories; /* [n_ranks] */
    struct task *tasks;             /* [n_tasks] */
    size_t n_tasks;
    uint32_t *others;      /* [places] the place whose rows alternate with the place's */
    uint64_t column_bytes; /* a thread's memory for rows of a transposed weight */
    unsigned char *raw;    /* [n_threads][raw_bytes] */
    size_t raw_bytes;
    atomic_size_t next;
    atomic_bool stop;
    pthread_mutex_t lock;                                     /* protects the fields below */
    uint64_t done_bytes[N_SEGMENTS], total_bytes[N_SEGMENTS]; /* for each rank */
    bool fills_shared;
    struct error *err;
    int rc;
};

static uint32_t chunk_rows(const struct load *load, const struct weight_place *place)
{
    return loader_rows_chunk(place, CHUNK_BYTES, load->column_bytes);
}

static uint32_t n_chunks(const struct load *load, const struct weight_place *place)
{
    uint32_t rows = chunk_rows(load, place);
    return place->desc.n_rows / rows + (place->desc.n_rows % rows != 0);
}

/* True if all ranks pack the same rows of a tensor. Then the ranks differ in columns, or not at
 * all. Ranks have different heads. */
static bool is_common(const struct loader_job *job, uint32_t i_place)
{
    const struct weight_place *first = &job->plans[0].places[i_place];
    if (i_place >= job->plans[0].n_places || arch_slot_facts(first->slot)->by_head)
        return job->n_ranks == 1;
    for (uint32_t r = 1; r < job->n_ranks; r++) {
        const struct weight_place *place = &job->plans[r].places[i_place];
        if (place->first != first->first || place->desc.n_rows != first->desc.n_rows ||
            place->row_bytes != first->row_bytes)
            return false;
    }
    return true;
}

/* Finds the places whose rows alternate. The second of two has no tasks of its own, and has itself
 * as its other place. */
static int find_others(struct load *load)
{
    const struct rank_plan *plan = &load->job->plans[0];
    load->others = malloc((size_t)plan->n_places * sizeof(*load->others) + 1);
    if (!load->others)
        return error_set(load->err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u weights",
                         plan->n_places);
    for (uint32_t i = 0; i < plan->n_places; i++)
        load->others[i] = NO_PLACE;
    for (uint32_t i = 0; i < plan->n_places; i++) {
        const struct weight_place *place = &plan->places[i];
        if (place->map.run != 1 || place->map.stride != 2 || load->others[i] != NO_PLACE)
            continue;
        for (uint32_t j = i + 1; j < plan->n_places && plan->places[j].layer == place->layer; j++)
            if (loader_rows_alternate(place, &plan->places[j])) {
                load->others[i] = load->others[j] = j;
                break;
            }
    }
    return 0;
}

static void add_tasks(struct load *load, uint32_t i_place, uint32_t rank, uint32_t n_ranks)
{
    const struct weight_place *place = &load->job->plans[rank].places[i_place];
    uint32_t rows = chunk_rows(load, place);
    uint32_t other = i_place < load->job->plans[0].n_places ? load->others[i_place] : NO_PLACE;
    for (uint32_t begin = 0; begin < place->desc.n_rows; begin += rows) {
        uint32_t left = place->desc.n_rows - begin;
        uint32_t take = left < rows ? left : rows;
        size_t bytes = (size_t)take * place->row_bytes * (other != NO_PLACE ? 2 : 1);
        load->tasks[load->n_tasks++] = (struct task){rank, n_ranks, i_place, other, begin, take};
        if (bytes > load->raw_bytes)
            load->raw_bytes = bytes;
    }
}

/* Lists the chunks of all ranks. All ranks have the same places with different shares, and then
 * those of their own heads. A chunk that all ranks need is read once. */
static int list_tasks(struct load *load)
{
    const struct loader_job *job = load->job;
    size_t n = 0;
    uint32_t most_places = 0;
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        uint32_t n_places = job->plans[r].n_places;
        most_places = n_places > most_places ? n_places : most_places;
        for (uint32_t i = 0; i < n_places; i++)
            n += n_chunks(load, &job->plans[r].places[i]);
    }
    load->tasks = malloc((n + 1) * sizeof(*load->tasks));
    if (!load->tasks)
        return error_set(load->err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu chunks", n);
    for (uint32_t i = 0; i < most_places; i++) {
        bool common = is_common(job, i);
        if (i < job->plans[0].n_places && load->others[i] == i)
            continue;
        for (uint32_t r = 0; r < (common ? 1 : job->n_ranks); r++)
            if (i < job->plans[r].n_places)
                add_tasks(load, i, r, common ? job->n_ranks : 1);
    }
    return 0;
}

static void fail_load(struct load *load, int rc, const struct error *err)
{
    pthread_mutex_lock(&load->lock);
    if (!load->rc) {
        load->rc = rc;
        *load->err = *err;
    }
    pthread_mutex_unlock(&load->lock);
    atomic_store(&load->stop, true);
}

static void report_progress(struct load *load, const struct task *task, uint32_t rank,
                            const struct weight_place *place)
{
    uint64_t n = place->desc.n_rows;
    uint64_t before = place->n_bytes * task->row_begin / n;
    uint64_t after = place->n_bytes * (task->row_begin + task->n_rows) / n;
    pthread_mutex_lock(&load->lock);
    load->done_bytes[rank] += after - before;
    if (load->job->progress)
        load->job->progress(load->job->progress_ctx, load->job->first_rank + rank,
                            load->done_bytes[rank], load->total_bytes[rank]);
    pthread_mutex_unlock(&load->lock);
}

static int pack_rank(struct load *load, const struct task *task, uint32_t rank, uint32_t i_place,
                     const void *raw, struct error *err)
{
    const struct weight_place *place = &load->job->plans[rank].places[i_place];
    void *weight = load->memories[rank].base + place->offset_bytes;
    int rc = weight_pack_rows(load->job->ops, weight, task->row_begin, task->n_rows, raw, err);
    if (rc)
        return checkpoint_bad_weights(load->job->model->ckpt, place->tensor, err);
    report_progress(load, task, rank, place);
    return 0;
}

static int pack_task(struct load *load, const struct task *task, unsigned char *raw,
                     struct error *err)
{
    const struct weight_place *places = load->job->plans[task->rank].places;
    const struct weight_place *place = &places[task->i_place];
    const struct checkpoint *ckpt = load->job->model->ckpt;
    bool two = task->i_other != NO_PLACE;
    unsigned char *second = raw + (size_t)task->n_rows * place->row_bytes;
    int rc = two ? loader_rows_read_both(ckpt, place, &places[task->i_other], task->row_begin,
                                         task->n_rows, raw, second, err)
                 : loader_rows_read(ckpt, place, task->row_begin, task->n_rows, raw, err);
    if (!rc)
        loader_rows_drop(ckpt, place, task->row_begin, task->n_rows);
    for (uint32_t i = 0; !rc && i < task->n_ranks; i++) {
        rc = pack_rank(load, task, task->rank + i, task->i_place, raw, err);
        if (!rc && two)
            rc = pack_rank(load, task, task->rank + i, task->i_other, second, err);
    }
    return rc;
}

static void pack_tasks(void *ctx, uint32_t index, uint32_t n_threads)
{
    struct load *load = ctx;
    unsigned char *raw = load->raw + index * load->raw_bytes;
    (void)n_threads;
    while (!atomic_load(&load->stop)) {
        struct error err = {0};
        size_t i = atomic_fetch_add(&load->next, 1);
        if (i >= load->n_tasks)
            return;
        if (load->job->cancel && *load->job->cancel) {
            int rc = error_set(&err, STATUS_CANCELLED, "%s: the load was cancelled",
                               checkpoint_name(load->job->model->ckpt));
            fail_load(load, rc, &err);
            return;
        }
        int rc = pack_task(load, &load->tasks[i], raw, &err);
        if (rc)
            fail_load(load, rc, &err);
    }
}

struct huge_job {
    const struct loader_memory *memory;
    int64_t deadline_ns;
};

static void make_huge(void *ctx, uint32_t item, uint32_t member)
{
    const struct huge_job *job = ctx;
    (void)member;
    if (clock_now_ns() < job->deadline_ns)
        loader_memory_make_huge(job->memory, item * HUGE_STEP_BYTES, HUGE_STEP_BYTES);
}

/* Where memory is fragmented, the kernel takes a millisecond or more to build one huge page. Then
 * only part of the weights gets huge pages: a long load is worse than slightly slower steps. */
static void request_huge_pages(const struct load *load, const struct loader_memory *memory)
{
    uint64_t n_bytes = memory->n_bytes;
    struct huge_job job = {memory, clock_now_ns() + HUGE_MIN_NS + (int64_t)(n_bytes / 4)};
    thread_pool_run_items(load->job->pool, (uint32_t)(n_bytes / HUGE_STEP_BYTES) + 1, make_huge,
                          &job);
}

static int init_weights(struct load *load, uint32_t r)
{
    const struct rank_plan *plan = &load->job->plans[r];
    int shared_fd = load->fills_shared ? load->job->shared_fds[r] : -1;
    int rc = loader_memory_init(&load->memories[r], plan, shared_fd, load->err);
    struct error why; /* ignored: a refused binding costs only speed */
    if (!rc && load->job->rank_nodes)
        memory_policy_bind(load->memories[r].base, plan->weights_bytes, load->job->rank_nodes[r],
                           &why);
    if (!rc)
        request_huge_pages(load, &load->memories[r]);
    for (uint32_t i = 0; !rc && i < plan->n_places; i++) {
        const struct weight_place *place = &plan->places[i];
        struct weight *weight;
        load->total_bytes[r] += place->n_bytes;
        rc = weight_init(load->job->ops, &place->desc, load->memories[r].base + place->offset_bytes,
                         &weight, load->err);
    }
    return rc;
}

static int pack_all(struct load *load)
{
    const struct loader_job *job = load->job;
    uint32_t n_threads = thread_pool_size(job->pool);
    load->column_bytes = TRANSPOSED_BYTES / 2 / n_threads; /* two weights at most */
    int rc = find_others(load);
    if (!rc)
        rc = list_tasks(load);
    for (uint32_t r = 0; !rc && r < job->n_ranks; r++)
        rc = init_weights(load, r);
    if (rc)
        return rc;
    load->raw_bytes = (load->raw_bytes + 63) / 64 * 64;
    load->raw = aligned_alloc(64, n_threads * load->raw_bytes);
    if (!load->raw)
        return error_set(load->err, STATUS_RESOURCE_EXHAUSTED,
                         "out of memory: %zu bytes for reading", n_threads * load->raw_bytes);
    thread_pool_run(job->pool, pack_tasks, load);
    return load->rc ? load->rc : checkpoint_check(job->model->ckpt, load->err);
}

static int map_shared(const struct loader_job *job, struct packed_weights *out_weights,
                      struct error *err)
{
    int rc = loader_share_map(job->shared_fds, job->plans, job->n_ranks, out_weights, err);
    for (uint32_t r = 0; !rc && job->progress && r < job->n_ranks; r++)
        job->progress(job->progress_ctx, job->first_rank + r, out_weights[r].n_bytes,
                      out_weights[r].n_bytes);
    return rc;
}

int loader_load(const struct loader_job *job, struct packed_weights *out_weights,
                struct error *out_why, struct error *err)
{
    struct loader_memory memories[N_SEGMENTS];
    struct packed_weights sealed[N_SEGMENTS] = {{0}};
    struct load load = {.job = job, .memories = memories, .err = err};
    uint32_t n_sealed = 0;
    if (!job->n_ranks || job->n_ranks > N_SEGMENTS)
        return error_set(err, STATUS_INTERNAL, "loader: %u ranks", job->n_ranks);
    error_clear(out_why);
    enum loader_share share = LOADER_SHARE_NONE;
    if (job->shared_fds)
        share = loader_share_check(job->shared_fds, job->plans, job->n_ranks, out_why);
    if (share == LOADER_SHARE_MAP && map_shared(job, out_weights, out_why) == 0)
        return 0;
    load.fills_shared = share == LOADER_SHARE_FILL;
    for (uint32_t r = 0; r < job->n_ranks; r++)
        memories[r] = (struct loader_memory){.fd = -1};
    pthread_mutex_init(&load.lock, NULL);
    int rc = pack_all(&load);
    for (; !rc && n_sealed < job->n_ranks; n_sealed++) {
        rc = loader_memory_seal(&memories[n_sealed], &job->plans[n_sealed], err);
        if (!rc)
            rc = loader_memory_map(&memories[n_sealed], &sealed[n_sealed], err);
    }
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        loader_memory_fini(&memories[r]);
        sealed[r].origin = load.fills_shared ? LOADER_FILLED : LOADER_OWN;
        if (rc)
            loader_unmap(&sealed[r]);
        else
            out_weights[r] = sealed[r];
    }
    pthread_mutex_destroy(&load.lock);
    free(load.tasks);
    free(load.others);
    free(load.raw);
    return rc;
}
