#include "engine/loader_device.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

/* Raw bytes of a slice, about: large enough that a copy is at the bus's rate, small enough that all
 * threads' slices are little memory. More threads than these do not make a disk or a bus faster. */
enum { SLICE_BYTES = 2 << 20, MAX_THREADS = 8, N_SLOTS = 2 };

struct slot {
    unsigned char *slice; /* pinned */
    struct event *copied; /* the slice may be written again */
};

/* What one thread works with. */
struct hand {
    struct stream *stream;
    unsigned char *raw;
    struct slot slots[N_SLOTS];
    uint32_t i_slot;
};

struct task {
    uint32_t i_place, row_begin, n_rows;
};

struct load {
    const struct loader_device_job *job;
    struct task *tasks;
    size_t n_tasks, raw_bytes, slice_bytes;
    struct hand hands[MAX_THREADS];
    uint32_t n_hands;
    atomic_size_t next;
    atomic_bool stop;
    pthread_mutex_t lock; /* over what follows */
    uint64_t done_bytes;
    struct error *err;
    int rc;
};

static uint32_t slice_rows(const struct weight_place *place)
{
    uint64_t rows = SLICE_BYTES / place->tensor->row_bytes / WEIGHT_PACK_ROWS * WEIGHT_PACK_ROWS;
    return rows < WEIGHT_PACK_ROWS ? WEIGHT_PACK_ROWS : (uint32_t)rows;
}

static int list_tasks(struct load *load)
{
    const struct rank_plan *plan = load->job->plan;
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_places; i++)
        n += plan->places[i].desc.n_rows / slice_rows(&plan->places[i]) + 1;
    load->tasks = malloc(n * sizeof(*load->tasks));
    if (!load->tasks)
        return error_set(load->err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu slices", n);
    for (uint32_t i = 0; i < plan->n_places; i++) {
        const struct weight_place *place = &plan->places[i];
        uint32_t rows = slice_rows(place), left;
        for (uint32_t begin = 0; begin < place->desc.n_rows; begin += rows) {
            left = place->desc.n_rows - begin;
            uint32_t take = left < rows ? left : rows;
            size_t raw = (size_t)take * place->tensor->row_bytes;
            size_t slice = weight_slice_bytes(load->job->ops, &place->desc, take);
            load->tasks[load->n_tasks++] = (struct task){i, begin, take};
            load->raw_bytes = raw > load->raw_bytes ? raw : load->raw_bytes;
            load->slice_bytes = slice > load->slice_bytes ? slice : load->slice_bytes;
        }
    }
    load->raw_bytes = (load->raw_bytes + 63) / 64 * 64;
    return 0;
}

static int prepare_hand(struct load *load, struct hand *hand)
{
    struct device *device = load->job->device;
    const struct device_ops *ops = device->ops;
    int rc = ops->stream_create(device, 1, &hand->stream, load->err);
    hand->raw = rc ? NULL : aligned_alloc(64, load->raw_bytes);
    if (!rc && !hand->raw)
        rc = error_set(load->err, STATUS_RESOURCE_EXHAUSTED, "out of memory: %zu bytes for reading",
                       load->raw_bytes);
    for (uint32_t i = 0; !rc && i < N_SLOTS; i++) {
        void *slice;
        rc = ops->alloc_host(device, load->slice_bytes, &slice, load->err);
        if (rc)
            return error_prefix(load->err, "staging memory");
        hand->slots[i].slice = slice;
        rc = ops->event_create(device, &hand->slots[i].copied, load->err);
    }
    return rc;
}

static void release_hand(const struct load *load, struct hand *hand)
{
    struct device *device = load->job->device;
    const struct device_ops *ops = device->ops;
    if (hand->stream)
        ops->stream_destroy(hand->stream);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        if (hand->slots[i].copied)
            ops->event_destroy(hand->slots[i].copied);
        if (hand->slots[i].slice)
            ops->free_host(device, hand->slots[i].slice, load->slice_bytes);
    }
    free(hand->raw);
}

static void fail(struct load *load, int rc, const struct error *err)
{
    pthread_mutex_lock(&load->lock);
    if (!load->rc) {
        load->rc = rc;
        *load->err = *err;
    }
    pthread_mutex_unlock(&load->lock);
    atomic_store(&load->stop, true);
}

static void report(struct load *load, const struct task *task, const struct weight_place *place)
{
    const struct loader_device_job *job = load->job;
    uint64_t n = place->desc.n_rows;
    uint64_t before = place->n_bytes * task->row_begin / n;
    uint64_t after = place->n_bytes * (task->row_begin + task->n_rows) / n;
    pthread_mutex_lock(&load->lock);
    load->done_bytes += after - before;
    if (job->progress)
        job->progress(job->progress_ctx, job->i_rank, load->done_bytes, job->plan->weights_bytes);
    pthread_mutex_unlock(&load->lock);
}

static int copy_slice(struct load *load, struct hand *hand, struct slot *slot,
                      const struct weight_place *place, const struct weight_copy *copies,
                      uint32_t n_copies)
{
    const struct device_ops *ops = load->job->device->ops;
    unsigned char *data = (unsigned char *)load->job->memory + place->offset_bytes;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < n_copies; i++)
        rc = ops->upload(hand->stream, data + copies[i].to, slot->slice + copies[i].from,
                         copies[i].n_bytes);
    return rc ? rc : ops->event_record(hand->stream, slot->copied);
}

static int pack_task(struct load *load, struct hand *hand, const struct task *task,
                     struct error *err)
{
    const struct loader_device_job *job = load->job;
    const struct weight_place *place = &job->plan->places[task->i_place];
    const struct checkpoint *ckpt = job->model->ckpt;
    struct slot *slot = &hand->slots[hand->i_slot++ % N_SLOTS];
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    uint32_t n_copies = 0;
    uint64_t row = (uint64_t)place->row_begin + task->row_begin;
    int rc = checkpoint_read_tensor_rows(ckpt, place->tensor, row, task->n_rows, hand->raw, err);
    if (rc)
        return rc;
    checkpoint_drop_tensor_rows(ckpt, place->tensor, row, task->n_rows);
    rc = job->device->ops->event_wait(slot->copied, err);
    if (rc)
        return rc;
    size_t skip = (size_t)place->col_begin * dtype_block_bytes(place->desc.source);
    rc = weight_pack_slice(job->ops, &place->desc, task->row_begin, task->n_rows, hand->raw + skip,
                           slot->slice, copies, &n_copies, err);
    if (rc) {
        error_prefix(err, "%s: tensor \"%.100s\"", checkpoint_name(ckpt), place->tensor->name);
        return rc == STATUS_FAILED_PRECONDITION ? error_reason(err, "MODEL_FILE_INVALID") : rc;
    }
    rc = copy_slice(load, hand, slot, place, copies, n_copies);
    if (rc) /* the stream knows why */
        return job->device->ops->stream_sync(hand->stream, err);
    report(load, task, place);
    return 0;
}

static void pack_tasks(void *ctx, uint32_t index, uint32_t n_threads)
{
    struct load *load = ctx;
    struct hand *hand = &load->hands[index];
    struct error err = {0};
    int rc = 0;
    (void)n_threads;
    while (!rc && !atomic_load(&load->stop)) {
        size_t i = atomic_fetch_add(&load->next, 1);
        if (i >= load->n_tasks)
            break;
        if (load->job->cancel && *load->job->cancel)
            rc = error_set(&err, STATUS_CANCELLED, "%s: the load was cancelled",
                           checkpoint_name(load->job->model->ckpt));
        else
            rc = pack_task(load, hand, &load->tasks[i], &err);
    }
    if (!rc)
        rc = load->job->device->ops->stream_sync(hand->stream, &err);
    if (rc)
        fail(load, rc, &err);
}

int loader_device_bind(const struct loader_device_job *job, struct weight **out_weights,
                       struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < job->plan->n_places; i++)
        rc = weight_bind(job->ops, &job->plan->places[i].desc,
                         (unsigned char *)job->memory + job->plan->places[i].offset_bytes,
                         &out_weights[i], err);
    return rc;
}

static int run(struct load *load)
{
    struct thread_pool *pool = NULL;
    uint32_t n = load->job->n_threads < MAX_THREADS ? load->job->n_threads : MAX_THREADS;
    int rc = list_tasks(load);
    for (load->n_hands = 0; !rc && load->n_hands < n; load->n_hands++)
        rc = prepare_hand(load, &load->hands[load->n_hands]);
    if (!rc)
        rc = thread_pool_create(n, &pool, load->err);
    if (!rc) {
        thread_pool_run(pool, pack_tasks, load);
        rc = load->rc;
    }
    thread_pool_destroy(pool);
    return rc ? rc : checkpoint_check(load->job->model->ckpt, load->err);
}

int loader_device_load(const struct loader_device_job *job, struct weight **out_weights,
                       struct error *err)
{
    struct load load = {.job = job, .err = err};
    pthread_mutex_init(&load.lock, NULL);
    int rc = run(&load);
    for (uint32_t i = 0; i < load.n_hands; i++)
        release_hand(&load, &load.hands[i]);
    pthread_mutex_destroy(&load.lock);
    free(load.tasks);
    return rc ? rc : loader_device_bind(job, out_weights, err);
}

void loader_device_unload(const struct op_table *ops, const struct rank_plan *plan,
                          struct weight **weights)
{
    for (uint32_t i = 0; i < plan->n_places; i++)
        weight_unbind(ops, weights[i]);
}
