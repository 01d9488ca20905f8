/* simt_tma.h: the copy engine of kernels/cuda/ptx_tma.h for fibers of the CPU. A tile's place reads
 * as 0xFF from the request until a thread waits for the barrier's phase. Misuse ends the process.
 * Misuse is a barrier that tma_fence_barriers() has not made visible, or a place that is not
 * aligned or not shared. So is a matrix that the driver has not described, and a block that ends
 * while a tile is under way. A phase that expects other bytes than arrive never ends. */
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "tests/simt/simt_barrier.h"

void tma_fence_barriers(void);
void tma_expect(uint64_t *barrier, uint32_t n_bytes);
void tma_fetch(void *shared, const struct tensor_map *map, uint32_t column, uint32_t row,
               uint64_t *barrier);

/* Completes the tiles that a barrier expects; returns true if there were any. */
bool simt_tma_deliver(uint64_t *barrier);
