/* ptx_tma.h: the copy engine of compute capability 9.0, a function per instruction. Source: PTX ISA
 * 8.x, sections "cp.async.bulk.tensor", "mbarrier.expect_tx operation", "fence".
 *
 * The engine copies a tile of a matrix in device memory into shared memory. A barrier
 * (ptx_barrier.h) can expect bytes. Its phase then ends when all threads have arrived and all these
 * bytes have been copied. A thread that waited for the phase may read the tile. So may its
 * multiplications by wgmma, without a further fence. The emulation for the CPU is
 * tests/simt/simt_tma.h. */
#pragma once

#include "kernels/cuda/ptx_barrier.h"
#include "kernels/cuda/tensor_map.h"

#ifndef __CUDACC__

#include <simt_tma.h>

#else

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TMA_BUILT 1
#else
#define TMA_BUILT 0
#endif

/* Makes this thread's new barriers visible to the engine. Call after barrier_init() and before the
 * block's __syncthreads(). */
CUDA_DEVICE void tma_fence_barriers(void)
{
#if TMA_BUILT
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::
                     : "memory");
#endif
}

/* Arrives, and adds n_bytes to the bytes that the barrier's phase expects. */
CUDA_DEVICE void tma_expect(uint64_t *barrier, uint32_t n_bytes)
{
#if TMA_BUILT
    uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("{.reg .b64 state;\n"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}" ::"r"(at),
                 "r"(n_bytes)
                 : "memory");
#endif
}

/* Starts copying the tile that begins at byte `column` of row `row` to `shared`, a multiple of 1024
 * bytes. Bytes outside the matrix arrive as zeros, and count. `map` is a kernel's argument. */
CUDA_DEVICE void tma_fetch(void *shared, const struct tensor_map *map, uint32_t column,
                           uint32_t row, uint64_t *barrier)
{
#if TMA_BUILT
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(map), "r"(column), "r"(row), "r"((uint32_t)__cvta_generic_to_shared(barrier))
                 : "memory");
#endif
}

#endif
