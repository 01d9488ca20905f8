/* support_mma.h: a warp's multiplications and ldmatrix on the CPU, for tests of the places of
 * operands in CUDA kernels. The code follows the PTX ISA ("Matrix Fragments for mma.m16n8k16 …",
 * "ldmatrix"), element by element. Sums are f64: exact for the small numbers of tests. */
#pragma once

#include <stdint.h>

enum { MMA_LANES = 32 };

/* The value of an element, by its bits. */
typedef double mma_value(uint32_t bits);

double mma_f16(uint32_t bits);
double mma_bf16(uint32_t bits);
double mma_f8(uint32_t bits);
double mma_s8(uint32_t bits);
double mma_u8(uint32_t bits);

/* d += A·B: m16n8k16 of 16-bit elements, m16n8k32 and m16n8k16 of 8-bit ones. */
void mma_k16(double d[MMA_LANES][4], uint32_t a[MMA_LANES][4], uint32_t b[MMA_LANES][2],
             mma_value *value);
void mma_k32(double d[MMA_LANES][4], uint32_t a[MMA_LANES][4], uint32_t b[MMA_LANES][2],
             mma_value *a_value, mma_value *b_value);
void mma_k16_bytes(double d[MMA_LANES][4], uint32_t a[MMA_LANES][2], const uint32_t b[MMA_LANES],
                   mma_value *a_value, mma_value *b_value);

/* ldmatrix.x4, and .trans; at: the byte that each lane names. Fails the test where a row is not
 * aligned, or where eight rows of a matrix meet in a bank. */
void mma_load(uint32_t r[MMA_LANES][4], const uint8_t *shared, const uint32_t at[MMA_LANES]);
void mma_load_turned(uint32_t r[MMA_LANES][4], const uint8_t *shared, const uint32_t at[MMA_LANES]);

/* Fails where the 32 lanes' accesses of n_bytes each (4, 8 or 16) need more cycles than their bytes
 * do. A cycle serves 4, 8 or 16 bytes of 32, 16 or 8 lanes, each bank once. */
void mma_check_banks(const uint32_t at[MMA_LANES], uint32_t n_bytes);
