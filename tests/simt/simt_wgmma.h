/* simt_wgmma.h: the multiplications of kernels/cuda/dense/ptx_wgmma.h for fibers of the CPU. Sums
 * read as NaN until the thread has waited for the multiplication. The multiplication's operands in
 * shared memory must stay unchanged until then. Three
 * other errors also end the process. A thread of the block wrote operands without a fence. There
 * was no wgmma_fence since the last wgmma_commit. A descriptor has an unknown layout. */
#pragma once

#include "tests/simt/simt_thread.h"

#define WGMMA_BUILT 1

/* Offset in the block's dynamic shared memory, which here begins at an odd multiple of 128. */
uint32_t wgmma_address(const void *shared);
void wgmma_fence_shared(void);
void wgmma_fence(void);
void wgmma_commit(void);
void wgmma_wait_but_one(void);
void wgmma_wait(float d[128]);
void wgmma_m64n256k16_bf16(float d[128], uint64_t a, uint64_t b);
void wgmma_m64n256k16_f16(float d[128], uint64_t a, uint64_t b);
