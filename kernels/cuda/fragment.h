/* fragment.h: maps elements of a tile to a warp's lanes, for the multiplications and loads of
 * ptx.h. Source: PTX ISA 8.x, "Matrix Fragments for mma.m16n8k16", "… mma.m16n8k32", "ldmatrix".
 * Plain functions of numbers, for the GPU and for the CPU.
 * tests/unit/kernels/cuda/test_cuda_fragment.c compares them with the ISA's text.
 * D[16][8] = A[16][k] · B[k][8]. A register has 32 bits: two elements of 16 bits along k (in D: one
 * sum), or four of 8. */
#pragma once

#include "kernels/cuda/index.h"

/* The ISA's groupID: row of A and of D, column of B. */
CUDA_HD uint32_t fragment_group(uint32_t lane)
{
    return lane / 4;
}

/* The ISA's threadID_in_group. */
CUDA_HD uint32_t fragment_member(uint32_t lane)
{
    return lane % 4;
}

/* --- sums: register e of four --- */

CUDA_HD uint32_t fragment_sum_row(uint32_t lane, uint32_t e)
{
    return fragment_group(lane) + e / 2 * 8;
}

CUDA_HD uint32_t fragment_sum_column(uint32_t lane, uint32_t e)
{
    return fragment_member(lane) * 2 + e % 2;
}

/* --- operands: register r; of A four, of B two --- */

CUDA_HD uint32_t fragment_a_row(uint32_t lane, uint32_t r)
{
    return fragment_group(lane) + r % 2 * 8;
}

/* Returns the first of a register's 16-bit elements along k. */
CUDA_HD uint32_t fragment_a_halves(uint32_t lane, uint32_t r)
{
    return fragment_member(lane) * 2 + r / 2 * 8;
}

/* Returns the first of a register's 8-bit elements along k. */
CUDA_HD uint32_t fragment_a_bytes(uint32_t lane, uint32_t r)
{
    return fragment_member(lane) * 4 + r / 2 * 16;
}

CUDA_HD uint32_t fragment_b_halves(uint32_t lane, uint32_t r)
{
    return fragment_member(lane) * 2 + r * 8;
}

CUDA_HD uint32_t fragment_b_bytes(uint32_t lane, uint32_t r)
{
    return fragment_member(lane) * 4 + r * 16;
}

/* --- ldmatrix of four 8 × 8 matrices of 16-bit elements: row and 16-byte piece of a lane's address
 * --- */

/* Returns the row of A that a lane addresses. A has 16 rows of 16 elements, k along a row; the
 * loaded registers are those of operand A. */
CUDA_HD uint32_t fragment_load_a_row(uint32_t lane)
{
    return lane % 16;
}

/* Returns the 16-byte piece of that row. */
CUDA_HD uint32_t fragment_load_a_piece(uint32_t lane)
{
    return lane / 16;
}

/* Returns the row that a lane addresses, for two tiles of eight columns of B stored with k along a
 * row. Registers 0 and 1 belong to the first tile. */
CUDA_HD uint32_t fragment_load_b_row(uint32_t lane)
{
    return lane % 8 + lane / 16 * 8;
}

/* Returns the 16-byte piece of that row. */
CUDA_HD uint32_t fragment_load_b_piece(uint32_t lane)
{
    return lane / 8 % 2;
}

/* Returns the row that a lane addresses, for two tiles of B stored with k from row to row. ldmatrix
 * transposes them (.trans). */
CUDA_HD uint32_t fragment_load_turned_row(uint32_t lane)
{
    return lane % 16;
}

/* Returns the 16-byte piece of that row. */
CUDA_HD uint32_t fragment_load_turned_piece(uint32_t lane)
{
    return lane / 16;
}

/* --- words --- */

CUDA_HD uint32_t fragment_pair(uint32_t low, uint32_t high)
{
    return low | high << 16;
}

CUDA_HD uint32_t fragment_four(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return a | b << 8 | c << 16 | d << 24;
}
