/* ptx_word.h: copies of words into shared memory. Source: PTX ISA 7.0, "cp.async". Included by
 * kernels whose rows are not 16-byte aligned; ptx.h has the wider copies, and the waits. */
#pragma once

#include "kernels/cuda/ptx.h"

#ifndef __CUDACC__

#include <simt_word.h>

#else

/* Copies 4 bytes, both sides aligned, without registers. Done as cp_async_16() (ptx.h). */
CUDA_DEVICE void cp_async_4(void *shared, const void *global)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(global) : "memory");
}

#endif
