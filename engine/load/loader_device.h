/* loader_device.h: copies a rank's share of a checkpoint onto a device, slice by slice. Each thread
 * reads rows, packs them in pinned memory and queues the copy. A thread has two slices, so that
 * reading, packing and copying overlap. No tensor is ever whole in host memory. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine_config.h"
#include "engine/model/plan.h"

struct device;
struct error;
struct model;

struct loader_device_job {
    const struct model *model;
    const struct op_table *ops;
    const struct rank_plan *plan;
    struct device *device;
    void *memory; /* plan->weights_bytes on the device; borrowed for the life of the weights */
    uint32_t n_threads;
    uint32_t i_rank;                /* rank number for progress */
    executor_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
    const atomic_bool *cancel; /* may be NULL */
};

/* out_weights[plan->n_places] are owned. loader_device_unload() frees the weights that exist, also
 * after a failure. Errors as loader_load(). */
int loader_device_load(const struct loader_device_job *job, struct weight **out_weights,
                       struct error *err);
/* Creates the weights over memory that is filled already (loader_image.h). */
int loader_device_bind(const struct loader_device_job *job, struct weight **out_weights,
                       struct error *err);
void loader_device_unload(const struct op_table *ops, const struct rank_plan *plan,
                          struct weight **weights);
