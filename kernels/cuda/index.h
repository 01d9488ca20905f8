/* index.h: index arithmetic of the CUDA kernels. Functions of plain numbers that compile for the
 * GPU (C++) and for the CPU (C11). tests/unit/kernels/cuda/test_cuda_index.c checks them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_HD __host__ __device__ static inline
#else
#define CUDA_HD static inline
#endif

/* Put before a loop over registers, whose indices must be constants. */
#ifdef __CUDA_ARCH__
#define CUDA_UNROLL _Pragma("unroll")
#else
#define CUDA_UNROLL
#endif

enum {
    CUDA_LANES = 16,   /* the contract's lanes of a sum */
    CUDA_SEGMENTS = 8, /* the contract's segments of a dimension */
    CUDA_UNIT = 32,    /* segment bounds are multiples of this many elements */
    CUDA_WARP = 32,
    CUDA_ROW_THREADS = 128 /* threads of a block that computes a norm */
};

/* Returns the blocks of `size` that cover n items, at most `limit` (a kernel strides over the
 * rest). */
CUDA_HD uint32_t cuda_n_blocks(uint64_t n, uint32_t size, uint32_t limit)
{
    uint64_t blocks = (n + size - 1) / size;
    return blocks > limit ? limit : (uint32_t)blocks;
}

/* Returns bound s (0..8) of a dimension of n elements, in units of 32 as in kernels/segments.h. */
CUDA_HD uint32_t cuda_segment_bound(uint32_t n, uint32_t s)
{
    uint64_t units = ((uint64_t)n + CUDA_UNIT - 1) / CUDA_UNIT;
    uint64_t bound = units * s / CUDA_SEGMENTS * CUDA_UNIT;
    return bound < n ? (uint32_t)bound : n;
}

/* Returns piece i, [begin, end), of n_pieces nearly equal pieces of [from, to). */
CUDA_HD void cuda_piece(uint32_t from, uint32_t to, uint32_t i, uint32_t n_pieces,
                        uint32_t *out_begin, uint32_t *out_end)
{
    uint64_t n = to - from;
    *out_begin = from + (uint32_t)(n * i / n_pieces);
    *out_end = from + (uint32_t)(n * (i + 1) / n_pieces);
}

/* --- distribution of items: block by block --- */

/* Returns the item of a thread, in blocks of n_threads. */
CUDA_HD uint32_t cuda_item(uint32_t block, uint32_t n_threads, uint32_t thread)
{
    return block * n_threads + thread;
}

/* The same for more than 2^32 items. */
CUDA_HD uint64_t cuda_wide_item(uint32_t block, uint32_t n_threads, uint32_t thread)
{
    return (uint64_t)block * n_threads + thread;
}

/* Returns the items of a whole grid, which is the distance to a thread's next item. */
CUDA_HD uint32_t cuda_grid_items(uint32_t n_blocks, uint32_t n_threads)
{
    return n_blocks * n_threads;
}

CUDA_HD uint64_t cuda_wide_grid_items(uint32_t n_blocks, uint32_t n_threads)
{
    return (uint64_t)n_blocks * n_threads;
}

/* Returns the index of a thread's warp in its block. */
CUDA_HD uint32_t cuda_warp_of(uint32_t thread)
{
    return thread / CUDA_WARP;
}

/* Returns the index of a thread's lane in its warp. */
CUDA_HD uint32_t cuda_lane_of(uint32_t thread)
{
    return thread % CUDA_WARP;
}

/* --- flags: bit i of a word --- */

CUDA_HD uint32_t cuda_bit(uint32_t word, uint32_t i)
{
    return word >> i & 1;
}

CUDA_HD uint32_t cuda_with_bit(uint32_t word, uint32_t i, uint32_t bit)
{
    return (word & ~(1u << i)) | bit << i;
}

/* --- a ring of n_stages in shared memory --- */

/* Returns the first byte of stage i. */
CUDA_HD uint32_t cuda_stage_at(uint32_t i, uint32_t n_bytes)
{
    return i * n_bytes;
}

/* Returns the first byte of the stage after the one that begins at `at`. */
CUDA_HD uint32_t cuda_ring_next(uint32_t at, uint32_t n_bytes, uint32_t n_stages)
{
    return at + n_bytes == n_stages * n_bytes ? 0 : at + n_bytes;
}

/* Returns the stage n after stage i. */
CUDA_HD uint32_t cuda_stage_after(uint32_t i, uint32_t n, uint32_t n_stages)
{
    return (i + n) % n_stages;
}

/* Returns true if an address is a multiple of n_bytes. */
CUDA_HD bool cuda_is_multiple(const void *at, uint32_t n_bytes)
{
    return (uintptr_t)at % n_bytes == 0;
}

/* --- arrays of rows --- */

/* Returns the first element of a row; rows are `stride` (elements, or bytes) apart. */
CUDA_HD size_t cuda_row(uint32_t row, size_t stride)
{
    return row * stride;
}

/* Returns the index of an element by row and column. */
CUDA_HD size_t cuda_element(uint32_t row, size_t stride, uint32_t column)
{
    return row * stride + column;
}

/* Returns the number of elements of a dense [n_rows, n_cols] array. */
CUDA_HD uint64_t cuda_n_elements(uint32_t n_rows, uint32_t n_cols)
{
    return (uint64_t)n_rows * n_cols;
}

/* Row and column of element i of a dense [n_rows, n_cols] array. */
CUDA_HD uint32_t cuda_row_of(uint64_t i, uint32_t n_cols)
{
    return (uint32_t)(i / n_cols);
}

CUDA_HD uint32_t cuda_column_of(uint64_t i, uint32_t n_cols)
{
    return (uint32_t)(i % n_cols);
}

/* Returns the place of element i of a dense [n_rows, n_cols] array in an array with a row
 * stride. */
CUDA_HD size_t cuda_strided(uint64_t i, uint32_t n_cols, size_t row_stride)
{
    return (size_t)(i / n_cols) * row_stride + (size_t)(i % n_cols);
}

CUDA_HD float cuda_from_bits(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } bits;
    bits.u = u;
    return bits.f;
}

/* Returns a float's bits as an unsigned number with the same order; −0 and +0 are equal. Not for
 * NaN. */
CUDA_HD uint32_t cuda_ordered_key(float x)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = x + 0.0f; /* −0 + 0 = +0 */
    return bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

/* Rounds up to a multiple (a power of two). */
CUDA_HD size_t cuda_round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) & ~(multiple - 1);
}

/* Adds up to 8 planes by the contract's tree (inner.h has the C version for the CPU). Bit i of
 * `present` marks parts[i] as present; count is 1, 2, 4 or 8. */
CUDA_HD float cuda_tree_sum(float parts[], uint32_t present, uint32_t count)
{
    for (; count > 1; count /= 2) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < count / 2; i++) {
            uint32_t left = present >> (2 * i) & 1, right = present >> (2 * i + 1) & 1;
            parts[i] =
                left && right ? parts[2 * i] + parts[2 * i + 1] : parts[2 * i + (right ? 1 : 0)];
            next |= (left | right) << i;
        }
        present = next;
    }
    return parts[0];
}
