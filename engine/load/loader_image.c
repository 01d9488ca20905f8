#include "engine/load/loader_image.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/load/loader.h"
#include "engine/load/loader_memory.h"
#include "engine/load/loader_staging.h"
#include "kernels/device.h"

struct move {
    const struct loader_device_job *job;
    unsigned char *host; /* the mapped image's copy of job->memory */
    bool saves;          /* true: from the device; false: to the device */
};

/* Saving: a slice has arrived from the device; copies it into the image. */
static void save_slice(struct loader_staging *staging, struct loader_staging_slot *slot)
{
    if (!slot->host) /* first use of the slot */
        return;
    memcpy(slot->host, slot->slice, slot->n_bytes);
    slot->host = NULL;
    loader_staging_report(staging, slot->n_bytes);
}

static int move_slice(struct loader_staging *staging, struct loader_staging_hand *hand, uint64_t i,
                      struct error *err)
{
    const struct move *move = loader_staging_ctx(staging);
    const struct loader_device_job *job = move->job;
    const struct device_ops *ops = job->device->ops;
    uint64_t at = i * LOADER_STAGING_SLICE_BYTES, left = job->plan->weights_bytes - at;
    size_t n_bytes = left < LOADER_STAGING_SLICE_BYTES ? (size_t)left : LOADER_STAGING_SLICE_BYTES;
    unsigned char *on_device = (unsigned char *)job->memory + at;
    struct loader_staging_slot *slot;
    int rc = loader_staging_slot(staging, hand, &slot, err);
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
    rc = loader_staging_queued(staging, hand, slot, rc, err);
    if (!rc && !move->saves)
        loader_staging_report(staging, n_bytes);
    return rc;
}

static int move_all(struct move *move, struct error *err)
{
    const struct loader_staging_work work = {
        .job = move->job,
        .slice_bytes = LOADER_STAGING_SLICE_BYTES,
        .n_items = (move->job->plan->weights_bytes + LOADER_STAGING_SLICE_BYTES - 1) /
                   LOADER_STAGING_SLICE_BYTES,
        .what = "copying the weights",
        .item = move_slice,
        .settled = move->saves ? save_slice : NULL,
        .ctx = move,
    };
    return loader_staging_run(&work, err);
}

uint64_t loader_image_bytes(const struct rank_plan *plan)
{
    return loader_memory_bytes(plan);
}

int loader_image_save(const struct loader_device_job *job, struct packed_weights *out_image,
                      struct error *err)
{
    struct move move = {.job = job, .saves = true};
    struct loader_memory memory;
    int rc = loader_memory_init(&memory, job->plan, -1, err);
    if (!rc) {
        move.host = memory.base + PLAN_HEADER_BYTES;
        rc = move_all(&move, err);
    }
    if (!rc)
        rc = loader_memory_seal(&memory, job->plan, err);
    if (!rc) { /* not mapped: the weights are still on the device */
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
    struct move move = {.job = job};
    uint64_t n_bytes = loader_image_bytes(job->plan);
    /* Kernels before 6.7 refuse a shared mapping of a write-sealed file even for reading. */
    void *base = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        base = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        return error_errno(err, errno, "mapping %" PRIu64 " bytes of kept weights", n_bytes);
    move.host = (unsigned char *)base + PLAN_HEADER_BYTES;
    int rc = move_all(&move, err);
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
