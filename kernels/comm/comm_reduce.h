/* comm_reduce.h: the arithmetic of a reduction over ranks, shared by all communicators of CPU
 * ranks. So every transport gives the same bits. Private to kernels/comm. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/comm.h"

struct tensor;

/* out[n] receives the reduction of slots[0..size - 1], each n elements of i32 or f32. Every rank
 * passes the slots in the order of ranks. `out` overlaps no slot. size is 1, 2, 4 or 8. */
void comm_reduce_slots(void *out, const uint8_t *const slots[], uint32_t size, size_t n,
                       enum comm_reduce how);

/* Reduces n elements at `data`, in place. */
typedef int comm_reduce_fn(struct comm *comm, void *data, size_t n, enum comm_reduce how);

/* Cuts a tensor into pieces of at most max_bytes, the same on all ranks, and calls fn for each.
 * STATUS_INTERNAL if the tensor's type does not fit the reduction, or the first error of fn. */
int comm_reduce_pieces(struct comm *comm, struct tensor *t, enum comm_reduce how, size_t max_bytes,
                       comm_reduce_fn *fn);
