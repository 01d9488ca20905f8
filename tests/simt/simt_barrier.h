/* simt_barrier.h: the barriers of kernels/cuda/ptx_barrier.h for fibers of the CPU. Misuse ends the
 * process: a wait before barrier_init, different counts at a numbered barrier, a block that ends
 * within a round. A wait that nothing ends is a
 * deadlock. */
#pragma once

#include "tests/simt/simt_thread.h"

void barrier_init(uint64_t *barrier, uint32_t n_arrivals);
void barrier_arrive(uint64_t *barrier);
void barrier_wait(uint64_t *barrier, uint32_t parity);
/* Counts bytes that a tile has brought (simt_tma.cc). */
void simt_barrier_bytes(uint64_t *barrier, uint32_t n_bytes);
void warps_sync(uint32_t number, uint32_t n_threads);
void warps_arrive(uint32_t number, uint32_t n_threads);

template <uint32_t N> static inline void registers_raise(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg");
}

template <uint32_t N> static inline void registers_lower(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg");
}
