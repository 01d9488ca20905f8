/* simt_wgmma.h: the multiplications of kernels/cuda/dense/ptx_wgmma.h for fibers of the CPU. Sums
 * read as NaN from a multiplication until it was waited for, and what it reads of shared memory
 * must be the same at both times. What ends the process beside that: a multiplication where a
 * thread of the block has written what it copied and not made that visible, without wgmma_fence
 * since the last wgmma_commit, or by a descriptor of another layout than the kernels have. */
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
