#include "engine/load/loader_device.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/load/loader_rows.h"
#include "engine/load/loader_staging.h"
#include "engine/model/model.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* Rows of one weight, packed and copied together. */
struct task {
    uint32_t i_place, row_begin, n_rows;
};

struct load {
    const struct loader_device_job *job;
    struct task *tasks;
    size_t n_tasks, raw_bytes, slice_bytes;
};

static uint32_t slice_rows(const struct weight_place *place)
{
    return loader_rows_chunk(place, LOADER_STAGING_SLICE_BYTES, LOADER_STAGING_SLICE_BYTES);
}

static int list_tasks(struct load *load, struct error *err)
{
    const struct rank_plan *plan = load->job->plan;
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_places; i++)
        n += plan->places[i].desc.n_rows / slice_rows(&plan->places[i]) + 1;
    load->tasks = malloc(n * sizeof(*load->tasks));
    if (!load->tasks)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu slices", n);
    for (uint32_t i = 0; i < plan->n_places; i++) {
        const struct weight_place *place = &plan->places[i];
        uint32_t rows = slice_rows(place), left;
        for (uint32_t begin = 0; begin < place->desc.n_rows; begin += rows) {
            left = place->desc.n_rows - begin;
            uint32_t take = left < rows ? left : rows;
            size_t raw = (size_t)take * place->row_bytes;
            size_t slice = weight_slice_bytes(load->job->ops, &place->desc, take);
            load->tasks[load->n_tasks++] = (struct task){i, begin, take};
            load->raw_bytes = raw > load->raw_bytes ? raw : load->raw_bytes;
            load->slice_bytes = slice > load->slice_bytes ? slice : load->slice_bytes;
        }
    }
    return 0;
}

static uint64_t bytes_of(const struct task *task, const struct weight_place *place)
{
    uint64_t n = place->desc.n_rows;
    uint64_t before = place->n_bytes * task->row_begin / n;
    uint64_t after = place->n_bytes * (task->row_begin + task->n_rows) / n;
    return after - before;
}

static int upload_slice(const struct load *load, struct loader_staging_hand *hand,
                        const struct loader_staging_slot *slot, const struct weight_place *place,
                        const struct weight_copy *copies, uint32_t n_copies)
{
    unsigned char *data = (unsigned char *)load->job->memory + place->offset_bytes;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < n_copies; i++)
        rc = load->job->device->ops->upload(hand->stream, data + copies[i].to,
                                            slot->slice + copies[i].from, copies[i].n_bytes);
    return rc;
}

static int pack_task(struct loader_staging *staging, struct loader_staging_hand *hand,
                     uint64_t i_task, struct error *err)
{
    const struct load *load = loader_staging_ctx(staging);
    const struct loader_device_job *job = load->job;
    const struct task *task = &load->tasks[i_task];
    const struct weight_place *place = &job->plan->places[task->i_place];
    const struct checkpoint *ckpt = job->model->ckpt;
    struct loader_staging_slot *slot;
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    uint32_t n_copies = 0;
    int rc = loader_rows_read(ckpt, place, task->row_begin, task->n_rows, hand->scratch, err);
    if (rc)
        return rc;
    /* The file's pages stay in the page cache, because they speed up a restart. The kernel frees
     * them when it needs memory. */
    rc = loader_staging_slot(staging, hand, &slot, err);
    if (rc)
        return rc;
    rc = weight_pack_slice(job->ops, &place->desc, task->row_begin, task->n_rows, hand->scratch,
                           slot->slice, copies, &n_copies, err);
    if (rc)
        return checkpoint_bad_weights(ckpt, place->tensor, err);
    rc = loader_staging_queued(staging, hand, slot,
                               upload_slice(load, hand, slot, place, copies, n_copies), err);
    if (!rc)
        loader_staging_report(staging, bytes_of(task, place));
    return rc;
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

int loader_device_load(const struct loader_device_job *job, struct weight **out_weights,
                       struct error *err)
{
    struct load load = {.job = job};
    char what[256];
    snprintf(what, sizeof(what), "%s: the load", checkpoint_name(job->model->ckpt));
    int rc = list_tasks(&load, err);
    const struct loader_staging_work work = {
        .job = job,
        .slice_bytes = load.slice_bytes,
        .scratch_bytes = load.raw_bytes,
        .n_items = load.n_tasks,
        .what = what,
        .item = pack_task,
        .ctx = &load,
    };
    if (!rc)
        rc = loader_staging_run(&work, err);
    if (!rc)
        rc = checkpoint_check(job->model->ckpt, err);
    free(load.tasks);
    return rc ? rc : loader_device_bind(job, out_weights, err);
}

void loader_device_unload(const struct op_table *ops, const struct rank_plan *plan,
                          struct weight **weights)
{
    for (uint32_t i = 0; i < plan->n_places; i++)
        weight_unbind(ops, weights[i]);
}
