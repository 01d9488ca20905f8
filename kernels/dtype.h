/* dtype.h: element and block formats of tensors, and their exact expansion to f32. Any thread.
 * Block layouts are those of ggml (GGUF specification); expansion is bit-equal to the `gguf`
 * package's (tests/golden/dequant). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q8_0,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_I8,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_F8_E4M3, /* see maths.h; for KV caches, and for weights on devices that support it */
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_MXFP4,
    DTYPE_OTHER, /* a file's type that no kernel reads; counts as 1 byte an element */
    N_DTYPES,
};

/* Returns the name, for example "Q4_1"; "?" outside the enum. */
const char *dtype_name(enum dtype type);
/* Elements per block (1 for plain types, 32 or 256) and bytes per block. */
uint32_t dtype_block_elems(enum dtype type);
uint32_t dtype_block_bytes(enum dtype type);
/* Returns true for the block formats. */
bool dtype_is_quantized(enum dtype type);

/* Returns the bytes of a row of n_elems. 0 on overflow, or if n_elems is no multiple of the block
 * size. */
size_t dtype_row_bytes(enum dtype type, uint64_t n_elems);

/* Expands n_elems (a multiple of the block size) from src to f32. Returns false for types without
 * an expansion (I8, I32, U32). */
bool dtype_to_f32(enum dtype type, const void *src, size_t n_elems, float *dst);

/* Converts MXFP4 as gpt-oss stores it in safetensors to blocks of DTYPE_MXFP4. n_elems is a
 * multiple of 32. `blocks` has 16 bytes per 32 elements: byte j has elements 2j (low bits) and 2j
 * + 1. `scales` has a byte per 32 elements. No value changes. */
void dtype_mxfp4_from_pairs(const uint8_t *blocks, const uint8_t *scales, size_t n_elems,
                            uint8_t *dst);

float dtype_f16_to_f32(uint16_t bits);
float dtype_bf16_to_f32(uint16_t bits);
/* Rounds to nearest, ties to even; NaN stays NaN. */
uint16_t dtype_f32_to_f16(float value);
uint16_t dtype_f32_to_bf16(float value);
