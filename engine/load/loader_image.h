/* loader_image.h: park copies: a rank's weights, in the device's layout, copied into a sealed memfd
 * and back. A version whose device serves another version meanwhile then returns without its file
 * being read and packed again. Threads copy slices through pinned memory. Each thread has two
 * slices, so that bus and host memory are busy at once.
 *
 *     memory: [struct packed_header, PLAN_HEADER_BYTES][the device's weights_bytes] */
#pragma once

#include <stdint.h>

#include "engine/load/loader_device.h"

struct error;
struct packed_weights;

/* Bytes of host memory that the image of a plan takes. */
uint64_t loader_image_bytes(const struct rank_plan *plan);

/* Fills and seals new memory from job->memory. *out_image is owned and not mapped: free it with
 * loader_image_close(). Steps may run meanwhile; job->ops and job->model are not read. CANCELLED if
 * *job->cancel became true; RESOURCE_EXHAUSTED without memory; else the device's error. */
int loader_image_save(const struct loader_device_job *job, struct packed_weights *out_image,
                      struct error *err);

/* FAILED_PRECONDITION (reason PACKED_MISMATCH) unless `fd` is a sealed image of this plan. */
int loader_image_check(int fd, const struct rank_plan *plan, struct error *err);

/* Replaces loader_device_load(): loads from an image that was checked. `fd` is borrowed. */
int loader_image_load(const struct loader_device_job *job, int fd, struct weight **out_weights,
                      struct error *err);

void loader_image_close(struct packed_weights *image); /* a zeroed struct is accepted */
