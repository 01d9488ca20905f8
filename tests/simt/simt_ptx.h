/* simt_ptx.h: the instructions of kernels/cuda/ptx.h for fibers of the CPU, with its fragments. A
 * float mma adds in f64 and rounds once: a tensor core's order and roundings are its own, so the
 * last bits differ. Addresses that a GPU would refuse, or mean otherwise, end the process. */
#pragma once

#include "tests/simt/simt_thread.h"

uint32_t add_bf16x2(uint32_t a, uint32_t b);

void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void mma_m16n8k32_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2]);
void mma_m16n8k32_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]);
void mma_m16n8k32_u8s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]);
/* The same with half of the columns; the other half counts as zero. */
static inline void mma_m16n8k16_u8s8(int32_t d[4], const uint32_t a[2], uint32_t b)
{
    const uint32_t wide_a[4] = {a[0], a[1], 0, 0}, wide_b[2] = {b, 0};
    mma_m16n8k32_u8s8(d, wide_a, wide_b);
}

void ldmatrix_x4(uint32_t r[4], const void *shared_row);
void ldmatrix_x4_trans(uint32_t r[4], const void *shared_row);

/* From the call to the wait, the destination reads as 0xFF, neither the old nor the new bytes. */
void cp_async_16(void *shared, const void *global, bool valid);
void cp_async_once_16(void *shared, const void *global, bool valid);
void cp_async_commit(void);
void simt_cp_async_wait(unsigned n_under_way);

template <int N> static inline void cp_async_wait(void)
{
    simt_cp_async_wait(N);
}

uint32_t pack_bf16x2(float x, float y);
uint32_t pack_f16x2(float x, float y);
void unpack_f16x2(float out[2], uint32_t pair);
void unpack_e4m3x4(uint32_t pairs[2], uint32_t codes);
uint32_t sub_f16x2(uint32_t x, uint32_t y);
float exp2_near(float x);

uint4 load_once_16(const void *global);
