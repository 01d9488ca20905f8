#include "engine/loader_image.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/loader.h"
#include "engine/loader_memory.h"
#include "kernels/device.h"
#include "kernels/thread_pool.h"

/* A slice: large enough that a copy is at the bus's rate, small enough that all threads' slices are
 * little memory. */
enum { SLICE_BYTES = 2 << 20, MAX_THREADS = 8, N_SLOTS = 2 };

struct slot {
    unsigned char *slice; /* pinned */
    struct event *copied; /* the device is done with the slice */
    unsigned char *host;  /* saving: where the slice goes once it has come; NULL: nothing is due */
    size_t n_bytes;
};

/* What one thread works with. */
struct hand {
    struct stream *stream;
    struct slot slots[N_SLOTS];
    uint32_t i_slot;
};

struct move {
    const struct loader_device_job *job;
    unsigned char *host; /* what lies at job->memory, of the mapped image */
    bool saves;          /* from the device; else to it */
    struct hand hands[MAX_THREADS];
    uint32_t n_hands;
    atomic_uint_fast64_t next; /* byte */
    atomic_bool stop;
    pthread_mutex_t lock; /* over what follows */
    uint64_t done_bytes;
    struct error *err;
    int rc;
};

static int prepare_hand(struct move *move, struct hand *hand)
{
    struct device *device = move->job->device;
    const struct device_ops *ops = device->ops;
    int rc = ops->stream_create(device, 1, &hand->stream, move->err);
    for (uint32_t i = 0; !rc && i < N_SLOTS; i++) {
        void *slice;
        rc = ops->alloc_host(device, SLICE_BYTES, &slice, move->err);
        if (rc)
            return error_prefix(move->err, "staging memory");
        hand->slots[i].slice = slice;
        rc = ops->event_create(device, &hand->slots[i].copied, move->err);
    }
    return rc;
}

static void release_hand(const struct move *move, struct hand *hand)
{
    struct device *device = move->job->device;
    const struct device_ops *ops = device->ops;
    if (hand->stream)
        ops->stream_destroy(hand->stream);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        if (hand->slots[i].copied)
            ops->event_destroy(hand->slots[i].copied);
        if (hand->slots[i].slice)
            ops->free_host(device, hand->slots[i].slice, SLICE_BYTES);
    }
}

static void fail(struct move *move, int rc, const struct error *err)
{
    pthread_mutex_lock(&move->lock);
    if (!move->rc) {
        move->rc = rc;
        *move->err = *err;
    }
    pthread_mutex_unlock(&move->lock);
    atomic_store(&move->stop, true);
}

static void report(struct move *move, size_t n_bytes)
{
    const struct loader_device_job *job = move->job;
    pthread_mutex_lock(&move->lock);
    move->done_bytes += n_bytes;
    if (job->progress)
        job->progress(job->progress_ctx, job->i_rank, move->done_bytes, job->plan->weights_bytes);
    pthread_mutex_unlock(&move->lock);
}

/* The slice may be used again: the device has read it, or what it brought is in the image. */
static int settle(struct move *move, struct slot *slot, struct error *err)
{
    int rc = move->job->device->ops->event_wait(slot->copied, err);
    if (rc || !slot->host)
        return rc;
    memcpy(slot->host, slot->slice, slot->n_bytes);
    slot->host = NULL;
    report(move, slot->n_bytes);
    return 0;
}

static int move_slice(struct move *move, struct hand *hand, uint64_t at, struct error *err)
{
    const struct loader_device_job *job = move->job;
    const struct device_ops *ops = job->device->ops;
    struct slot *slot = &hand->slots[hand->i_slot++ % N_SLOTS];
    uint64_t left = job->plan->weights_bytes - at;
    size_t n_bytes = left < SLICE_BYTES ? (size_t)left : SLICE_BYTES;
    unsigned char *on_device = (unsigned char *)job->memory + at;
    int rc = settle(move, slot, err);
    if (rc)
        return rc;
    if (move->saves) {
        rc = ops->download(hand->stream, slot->slice, on_device, n_bytes);
        slot->host = move->host + at;
        slot->n_bytes = n_bytes;
    } else {
        memcpy(slot->slice, move->host + at, n_bytes);
        rc = ops->upload(hand->stream, on_device, slot->slice, n_bytes);
    }
    if (!rc)
        rc = ops->event_record(hand->stream, slot->copied);
    if (rc) /* the stream knows why */
        return ops->stream_sync(hand->stream, err);
    if (!move->saves)
        report(move, n_bytes);
    return 0;
}

static void move_slices(void *ctx, uint32_t index, uint32_t n_threads)
{
    struct move *move = ctx;
    struct hand *hand = &move->hands[index];
    struct error err = {0};
    int rc = 0;
    (void)n_threads;
    while (!rc && !atomic_load(&move->stop)) {
        uint64_t at = atomic_fetch_add(&move->next, SLICE_BYTES);
        if (at >= move->job->plan->weights_bytes)
            break;
        if (move->job->cancel && *move->job->cancel)
            rc = error_set(&err, STATUS_CANCELLED, "copying the weights was cancelled");
        else
            rc = move_slice(move, hand, at, &err);
    }
    for (uint32_t i = 0; !rc && move->saves && i < N_SLOTS; i++)
        rc = settle(move, &hand->slots[i], &err);
    if (!rc)
        rc = move->job->device->ops->stream_sync(hand->stream, &err);
    if (rc)
        fail(move, rc, &err);
}

static int run(struct move *move)
{
    const struct loader_device_job *job = move->job;
    struct thread_pool *pool = NULL;
    uint64_t n_slices = (job->plan->weights_bytes + SLICE_BYTES - 1) / SLICE_BYTES;
    uint32_t n = job->n_threads < MAX_THREADS ? job->n_threads : MAX_THREADS;
    int rc = 0;
    n = n_slices < n ? (uint32_t)n_slices : n;
    pthread_mutex_init(&move->lock, NULL);
    for (; !rc && move->n_hands < n; move->n_hands++)
        rc = prepare_hand(move, &move->hands[move->n_hands]);
    if (!rc)
        rc = thread_pool_create(n, &pool, move->err);
    if (!rc) {
        thread_pool_run(pool, move_slices, move);
        rc = move->rc;
    }
    thread_pool_destroy(pool);
    for (uint32_t i = 0; i < move->n_hands; i++)
        release_hand(move, &move->hands[i]);
    pthread_mutex_destroy(&move->lock);
    return rc;
}

uint64_t loader_image_bytes(const struct rank_plan *plan)
{
    return loader_memory_bytes(plan);
}

int loader_image_save(const struct loader_device_job *job, struct packed_weights *out_image,
                      struct error *err)
{
    struct move move = {.job = job, .saves = true, .err = err};
    struct loader_memory memory;
    int rc = loader_memory_init(&memory, job->plan, -1, err);
    if (!rc) {
        move.host = memory.base + LOADER_HEADER_BYTES;
        rc = run(&move);
    }
    if (!rc)
        rc = loader_memory_seal(&memory, job->plan, err);
    if (!rc) { /* not mapped again: who serves has them on the device */
        *out_image = (struct packed_weights){.fd = memory.fd, .n_bytes = memory.n_bytes};
        memory.fd = -1;
    }
    loader_memory_fini(&memory);
    return rc;
}

int loader_image_check(int fd, const struct rank_plan *plan, struct error *err)
{
    return loader_memory_check(fd, plan, err);
}

int loader_image_load(const struct loader_device_job *job, int fd, struct weight **out_weights,
                      struct error *err)
{
    struct move move = {.job = job, .err = err};
    uint64_t n_bytes = loader_image_bytes(job->plan);
    /* Kernels before 6.7 refuse a shared mapping of a write-sealed file even for reading. */
    void *base = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        base = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        return error_errno(err, errno, "mapping %" PRIu64 " bytes of kept weights", n_bytes);
    move.host = (unsigned char *)base + LOADER_HEADER_BYTES;
    int rc = run(&move);
    munmap(base, n_bytes);
    return rc ? rc : loader_device_bind(job, out_weights, err);
}

void loader_image_close(struct packed_weights *image)
{
    if (!image->n_bytes)
        return;
    close(image->fd);
    *image = (struct packed_weights){.fd = -1};
}
