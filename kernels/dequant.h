/* dequant.h: decodes the blocks of quantized formats, for dtype.c and for packing weights. Any
 * thread. Layouts: GGUF specification (ggml). All blocks are little-endian byte strings without
 * alignment. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* Expands a block of a quantized type (dtype_block_elems values). */
void dequant_block(enum dtype type, const uint8_t *block, float *dst);

/* A run of 32 elements as the integers of its format: element i is d·scales[i / 16]·(q[i] − zero) +
 * m·mins[i / 16], with the zero of dequant_zero(). In formats with a table, q[i] − zero is
 * table[q[i]]. */
struct dequant_run {
    float d, m;
    int8_t scales[2];
    uint8_t mins[2];
    uint8_t q[32];
};

/* Returns the table of 16 values of IQ4_NL, IQ4_XS and MXFP4 (doubled); NULL for other formats. */
const int8_t *dequant_table(enum dtype type);

/* Returns the code that stands for 0 in a format without offsets; 0 for other formats. For the
 * formats of dequant_run_exact(). */
unsigned dequant_zero(enum dtype type);

/* Decodes run number i_run of a raw row of Q5_0, Q5_1, Q2_K, Q3_K, Q5_K, Q6_K or a format with a
 * table. */
void dequant_run_exact(enum dtype type, const uint8_t *row, size_t i_run, struct dequant_run *out);

/* Returns true for formats whose weights are d·q + m with q in 0..15 over runs of 32: Q4_0, Q4_1,
 * Q4_K. */
bool dequant_is_4bit(enum dtype type);

/* Decodes run number i_run (32 elements) of a raw row of a 4-bit format. Outputs: scale d, offset m
 * and the 32 codes (0..15) in element order. */
void dequant_run_4bit(enum dtype type, const uint8_t *row, size_t i_run, float *out_d, float *out_m,
                      uint8_t out_q[32]);
/* Decodes d and m alone. */
void dequant_scales_4bit(enum dtype type, const uint8_t *row, size_t i_run, float *out_d,
                         float *out_m);
