/* loader_image.h: a rank's weights as they lie on its device, copied into a sealed memfd and back:
 * what is kept of a version whose device is given to another, so that it comes back without its
 * file being read and packed again. Threads copy slices through pinned memory, each with two, so
 * that the bus and the host's memory are busy at once.
 *
 *     memory: [struct packed_header, PLAN_HEADER_BYTES][the device's weights_bytes]
 */
#pragma once

#include <stdint.h>

#include "engine/load/loader_device.h"

struct error;
struct packed_weights;

/* Host memory that the image of a plan takes. */
uint64_t loader_image_bytes(const struct rank_plan *plan);

/* Fills and seals memory of its own from job->memory. *out_image is owned, its memory not mapped:
 * loader_image_close(). Steps may run meanwhile; job->ops and job->model are not read. CANCELLED
 * where *job->cancel became true; RESOURCE_EXHAUSTED where memory ran out; else the device's error.
 */
int loader_image_save(const struct loader_device_job *job, struct packed_weights *out_image,
                      struct error *err);

/* FAILED_PRECONDITION (reason PACKED_MISMATCH) unless `fd` is a sealed image of this plan. */
int loader_image_check(int fd, const struct rank_plan *plan, struct error *err);

/* In place of loader_device_load(), from an image that was checked; fd is borrowed. */
int loader_image_load(const struct loader_device_job *job, int fd, struct weight **out_weights,
                      struct error *err);

void loader_image_close(struct packed_weights *image); /* a zeroed struct is allowed */
