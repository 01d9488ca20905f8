/* simt_wgmma.h: the multiplications of kernels/cuda/dense/ptx_wgmma.h for fibers of the CPU. Sums
 * read as NaN until the thread has waited for the multiplication. Until then its operands and its
 * sums must stay unchanged, in shared memory and in registers. Three other errors also end the
 * process. A thread of the block wrote operands without a fence. There was no wgmma_fence since the
 * last wgmma_commit. A descriptor has an unknown layout. */
#pragma once

#include "tests/simt/simt_thread.h"

#define WGMMA_BUILT 1

/* Offset in the block's dynamic shared memory, which here begins at an odd multiple of 128. */
uint32_t wgmma_address(const void *shared);
void wgmma_fence_shared(void);
void wgmma_fence(void);
void wgmma_commit(void);
void wgmma_wait_but_one(void);
void wgmma_wait_all(void);
void wgmma_wait(float d[128]);
void wgmma_m64n256k16_bf16(float d[128], uint64_t a, uint64_t b);
void wgmma_m64n256k16_f16(float d[128], uint64_t a, uint64_t b);
void wgmma_m64n128k16_bf16(float d[64], uint64_t a, uint64_t b, bool adds);
void wgmma_m64n128k16_f16(float d[64], uint64_t a, uint64_t b, bool adds);
void wgmma_turned_m64n128k16_bf16(float d[64], const uint32_t a[4], uint64_t b);
void wgmma_turned_m64n128k16_f16(float d[64], const uint32_t a[4], uint64_t b);
void wgmma_turned_m64n64k16_bf16(float d[32], const uint32_t a[4], uint64_t b);
void wgmma_turned_m64n64k16_f16(float d[32], const uint32_t a[4], uint64_t b);
/* Sums of E4M3 keep 14 bits after each multiplication, cut off towards zero. That is a model of the
 * GPU, whose rounding is not documented. */
void wgmma_m64n128k32_e4m3_first(float d[64], uint64_t a, uint64_t b);
void wgmma_m64n128k32_e4m3(float d[64], uint64_t a, uint64_t b);
void wgmma_wait_64(float d[64]);

/* Ends the process if multiplications on d are under way. */
void simt_wgmma_settled(const float *d);

template <uint32_t N> static inline void wgmma_settle(float (&d)[N])
{
    simt_wgmma_settled(d);
}

static inline uint32_t wgmma_again(uint32_t x)
{
    return x;
}

template <uint32_t N> static inline void wgmma_keep(uint32_t (&)[N])
{
}
