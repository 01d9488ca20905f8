/* dequant_at.h: decodes an element of a raw row of any weight format, for the GPU, where each
 * thread decodes its own element. The float operations and their order are those of dequant.c, so
 * the bits are equal. Layouts: GGUF specification (ggml). Compiles as C11 and as CUDA C++. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/maths.h"

MATHS_FN float dequant_half_at(const uint8_t *bytes)
{
    return maths_f16_to_f32((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* The values of 4-bit codes in formats with a table: IQ4_NL and IQ4_XS; MXFP4, doubled. */
#define DEQUANT_IQ4_TABLE                                                                          \
    {                                                                                              \
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113                   \
    }
#define DEQUANT_MXFP4_TABLE                                                                        \
    {                                                                                              \
        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12                                    \
    }

MATHS_FN int32_t dequant_table_at(enum dtype type, uint32_t code)
{
    const int8_t iq4[16] = DEQUANT_IQ4_TABLE, mxfp4[16] = DEQUANT_MXFP4_TABLE;
    return type == DTYPE_MXFP4 ? mxfp4[code] : iq4[code];
}

/* Half of an E8M0 scale: 2^(e − 128). */
MATHS_FN float dequant_e8m0_half(uint8_t e)
{
    union {
        uint32_t bits;
        float value;
    } x;
    x.bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    return x.value;
}

/* The scale of sub-block b of an IQ4_XS block. */
MATHS_FN int32_t dequant_iq4_xs_scale(const uint8_t *block, uint32_t b)
{
    uint32_t high = (uint32_t)(block[2] | block[3] << 8) >> 2 * b & 3u,
             low = block[4 + b / 2] >> b % 2 * 4 & 15u;
    return (int32_t)(low | high << 4) - 32;
}

/* Element i of a block of 32: low nibbles are elements 0..15, high ones 16..31. */
MATHS_FN uint32_t dequant_nibble_at(const uint8_t *qs, uint32_t i)
{
    return i < 16 ? qs[i] & 15u : (uint32_t)(qs[i - 16] >> 4);
}

/* Two-bit code of element i of a block of 256: 32 bytes carry 128 elements. */
MATHS_FN uint32_t dequant_pair_at(const uint8_t *qs, uint32_t i)
{
    return qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u;
}

MATHS_FN float dequant_at_32(enum dtype type, const uint8_t *block, uint32_t i)
{
    float d = dequant_half_at(block);
    if (type == DTYPE_Q8_0)
        return d * (float)(int8_t)block[2 + i];
    if (type == DTYPE_Q4_0)
        return d * (float)((int32_t)dequant_nibble_at(block + 2, i) - 8);
    if (type == DTYPE_Q4_1)
        return d * (float)dequant_nibble_at(block + 4, i) + dequant_half_at(block + 2);
    const uint8_t *high = block + (type == DTYPE_Q5_0 ? 2 : 4);
    uint32_t q = dequant_nibble_at(high + 4, i) | (high[i / 8] >> i % 8 & 1u) << 4;
    if (type == DTYPE_Q5_0)
        return d * (float)((int32_t)q - 16);
    return d * (float)q + dequant_half_at(block + 2);
}

/* The 6-bit scale and minimum of sub-block i of a Q4_K or Q5_K block. */
MATHS_FN void dequant_scale_min(const uint8_t *scales, uint32_t i, uint32_t *out_scale,
                                uint32_t *out_min)
{
    if (i < 4) {
        *out_scale = scales[i] & 63u;
        *out_min = scales[4 + i] & 63u;
    } else {
        *out_scale = (scales[4 + i] & 15u) | (scales[i - 4] >> 2 & 0x30u);
        *out_min = (uint32_t)(scales[4 + i] >> 4) | (scales[i] >> 2 & 0x30u);
    }
}

MATHS_FN float dequant_at_q2_k(const uint8_t *block, uint32_t i)
{
    float dl = dequant_half_at(block + 80) * (float)(block[i / 16] & 15),
          ml = dequant_half_at(block + 82) * (float)(block[i / 16] >> 4);
    return dl * (float)dequant_pair_at(block + 16, i) - ml;
}

MATHS_FN float dequant_at_q3_k(const uint8_t *block, uint32_t i)
{
    const uint8_t *scales = block + 96;
    uint32_t sub = i / 16, low = scales[sub % 8] >> sub / 8 * 4 & 15u,
             high = scales[8 + sub % 4] >> sub / 4 * 2 & 3u;
    float dl = dequant_half_at(block + 108) * (float)((int32_t)(low | high << 4) - 32);
    /* a clear mask bit subtracts 4 */
    int32_t q = (int32_t)dequant_pair_at(block + 32, i) - (block[i % 32] >> i / 32 & 1 ? 0 : 4);
    return dl * (float)q;
}

MATHS_FN float dequant_at_q45_k(enum dtype type, const uint8_t *block, uint32_t i)
{
    uint32_t sub = i / 32, in_sub = i % 32, scale, min;
    const uint8_t *qs = block + (type == DTYPE_Q5_K ? 48 : 16);
    dequant_scale_min(block + 4, sub, &scale, &min);
    float dl = dequant_half_at(block) * (float)scale, ml = dequant_half_at(block + 2) * (float)min;
    uint32_t q = qs[sub / 2 * 32 + in_sub] >> sub % 2 * 4 & 15u;
    if (type == DTYPE_Q5_K)
        q |= (block[16 + in_sub] >> sub & 1u) << 4;
    return dl * (float)q - ml;
}

MATHS_FN float dequant_at_q6_k(const uint8_t *block, uint32_t i)
{
    uint32_t half = i / 128, run = i / 32 % 4, in_run = i % 32;
    uint32_t low = block[half * 64 + run % 2 * 32 + in_run] >> run / 2 * 4 & 15u,
             high = block[128 + half * 32 + in_run] >> run * 2 & 3u;
    float dl = dequant_half_at(block + 208) * (float)(int8_t)block[192 + i / 16];
    return dl * (float)((int32_t)(low | high << 4) - 32);
}

MATHS_FN float dequant_at_table(enum dtype type, const uint8_t *block, uint32_t i)
{
    uint32_t b = i / 32;
    float d;
    const uint8_t *qs = block + (type == DTYPE_IQ4_XS ? 8 + 16 * b : type == DTYPE_MXFP4 ? 1 : 2);
    if (type == DTYPE_MXFP4)
        d = dequant_e8m0_half(block[0]);
    else
        d = dequant_half_at(block);
    if (type == DTYPE_IQ4_XS)
        d = d * (float)dequant_iq4_xs_scale(block, b);
    return d * (float)dequant_table_at(type, dequant_nibble_at(qs, i % 32));
}

/* Decodes element k of a row; 0 for types that no weight has. */
MATHS_FN float dequant_at(enum dtype type, const uint8_t *row, size_t k)
{
    uint32_t i = (uint32_t)(k % 256), in_32 = (uint32_t)(k % 32);
    switch (type) {
    case DTYPE_F32:
        return ((const float *)(const void *)row)[k];
    case DTYPE_F16:
        return dequant_half_at(row + 2 * k);
    case DTYPE_BF16:
        return maths_bf16_to_f32((uint16_t)(row[2 * k] | row[2 * k + 1] << 8));
    case DTYPE_Q8_0:
        return dequant_at_32(type, row + k / 32 * 34, in_32);
    case DTYPE_Q4_0:
        return dequant_at_32(type, row + k / 32 * 18, in_32);
    case DTYPE_Q4_1:
        return dequant_at_32(type, row + k / 32 * 20, in_32);
    case DTYPE_Q5_0:
        return dequant_at_32(type, row + k / 32 * 22, in_32);
    case DTYPE_Q5_1:
        return dequant_at_32(type, row + k / 32 * 24, in_32);
    case DTYPE_Q2_K:
        return dequant_at_q2_k(row + k / 256 * 84, i);
    case DTYPE_Q3_K:
        return dequant_at_q3_k(row + k / 256 * 110, i);
    case DTYPE_Q4_K:
        return dequant_at_q45_k(type, row + k / 256 * 144, i);
    case DTYPE_Q5_K:
        return dequant_at_q45_k(type, row + k / 256 * 176, i);
    case DTYPE_Q6_K:
        return dequant_at_q6_k(row + k / 256 * 210, i);
    case DTYPE_IQ4_NL:
        return dequant_at_table(type, row + k / 32 * 18, in_32);
    case DTYPE_IQ4_XS:
        return dequant_at_table(type, row + k / 256 * 136, i);
    case DTYPE_MXFP4:
        return dequant_at_table(type, row + k / 32 * 17, in_32);
    default:
        return 0.0f;
    }
}
