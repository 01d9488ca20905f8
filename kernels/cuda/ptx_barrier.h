/* ptx_barrier.h: barriers between some warps of a block, a function per instruction. Source: PTX
 * ISA 8.x, sections "mbarrier", "bar, barrier", "setmaxnreg". Two kinds:
 *
 *   in shared memory  A phase ends after barrier_init()'s number of arrivals, then the next begins.
 *                     A wait for parity p returns if a phase of parity p has ended last. Phases
 *                     count from 0. So at first a wait for parity 1 returns at once.
 *   numbered          1 to 15 (0 is __syncthreads). A round ends once n_threads threads have
 *                     arrived; those of warps_sync() wait for that.
 *
 * The threads that waited see the writes that other threads made before their arrival. For compute
 * capability 9.0 and above. The emulation for the CPU is tests/simt/simt_barrier.h. */
#pragma once

#include "kernels/cuda/thread.h"

#ifndef __CUDACC__

#include <simt_barrier.h>

#else

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* Call by a single thread. All threads wait at __syncthreads() before they use the barrier. */
CUDA_DEVICE void barrier_init(uint64_t *barrier, uint32_t n_arrivals)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n_arrivals) : "memory");
}

CUDA_DEVICE void barrier_arrive(uint64_t *barrier)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("{.reg .b64 state;\n"
                 "mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(at)
                 : "memory");
}

/* A wait of four million tries is a fault of the kernel: the launch then ends with an error. */
CUDA_DEVICE void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(barrier);
    asm volatile("{.reg .pred ended, more;\n"
                 ".reg .u32 tries;\n"
                 "mov.u32 tries, 0;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                 "@ended bra done;\n"
                 "add.u32 tries, tries, 1;\n"
                 "setp.lt.u32 more, tries, 0x400000;\n"
                 "@more bra again;\n"
                 "trap;\n"
                 "done:}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

#else

CUDA_DEVICE void barrier_init(uint64_t *, uint32_t)
{
}

CUDA_DEVICE void barrier_arrive(uint64_t *)
{
}

CUDA_DEVICE void barrier_wait(uint64_t *, uint32_t)
{
}

#endif

/* Whole warps call this. */
CUDA_DEVICE void warps_sync(uint32_t number, uint32_t n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(n_threads) : "memory");
}

CUDA_DEVICE void warps_arrive(uint32_t number, uint32_t n_threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(n_threads) : "memory");
}

/* Set the number of registers of each of this warpgroup's threads, a multiple of 8 (sm_90a).
 * The block's groups together keep within the registers of its launch. */
template <uint32_t N> CUDA_DEVICE void registers_raise(void)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <uint32_t N> CUDA_DEVICE void registers_lower(void)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#endif
