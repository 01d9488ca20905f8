#include "kernels/dtype.h"

#include <string.h>

#include "kernels/dequant.h"
#include "kernels/maths.h"

static const struct {
    const char *name;
    uint16_t elems, bytes;
    bool quantized;
} types[N_DTYPES] = {
    [DTYPE_F32] = {"F32", 1, 4, false},          [DTYPE_F16] = {"F16", 1, 2, false},
    [DTYPE_BF16] = {"BF16", 1, 2, false},        [DTYPE_Q8_0] = {"Q8_0", 32, 34, true},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, true},       [DTYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22, true},       [DTYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [DTYPE_Q2_K] = {"Q2_K", 256, 84, true},      [DTYPE_Q3_K] = {"Q3_K", 256, 110, true},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144, true},     [DTYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, true},     [DTYPE_I8] = {"I8", 1, 1, false},
    [DTYPE_I32] = {"I32", 1, 4, false},          [DTYPE_U32] = {"U32", 1, 4, false},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1, false},  [DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, true},
    [DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, true}, [DTYPE_MXFP4] = {"MXFP4", 32, 17, true},
    [DTYPE_OTHER] = {"other", 1, 1, false},
};

static bool is_known(enum dtype type)
{
    return (unsigned)type < N_DTYPES;
}

const char *dtype_name(enum dtype type)
{
    return is_known(type) ? types[type].name : "?";
}

uint32_t dtype_block_elems(enum dtype type)
{
    return is_known(type) ? types[type].elems : 0;
}

uint32_t dtype_block_bytes(enum dtype type)
{
    return is_known(type) ? types[type].bytes : 0;
}

bool dtype_is_quantized(enum dtype type)
{
    return is_known(type) && types[type].quantized;
}

size_t dtype_row_bytes(enum dtype type, uint64_t n_elems)
{
    if (!is_known(type) || n_elems % types[type].elems != 0)
        return 0;
    size_t bytes;
    if (__builtin_mul_overflow(n_elems / types[type].elems, types[type].bytes, &bytes))
        return 0;
    return bytes;
}

void dtype_mxfp4_from_pairs(const uint8_t *blocks, const uint8_t *scales, size_t n_elems,
                            uint8_t *dst)
{
    for (size_t i = 0; i < n_elems / 32; i++, blocks += 16, dst += 17) {
        dst[0] = scales[i];
        for (unsigned j = 0; j < 16; j += 2) { /* elements 2j … 2j + 3, and those 16 further on */
            uint8_t low = blocks[j / 2], high = blocks[8 + j / 2];
            dst[1 + j] = (uint8_t)((low & 15) | high << 4);
            dst[2 + j] = (uint8_t)(low >> 4 | (high & 0xF0));
        }
    }
}

float dtype_f16_to_f32(uint16_t bits)
{
    return maths_f16_to_f32(bits);
}

float dtype_bf16_to_f32(uint16_t bits)
{
    return maths_bf16_to_f32(bits);
}

uint16_t dtype_f32_to_f16(float value)
{
    return maths_f32_to_f16(value);
}

uint16_t dtype_f32_to_bf16(float value)
{
    return maths_f32_to_bf16(value);
}

bool dtype_to_f32(enum dtype type, const void *src, size_t n_elems, float *dst)
{
    const uint8_t *bytes = src;
    switch (type) {
    case DTYPE_F32:
        memcpy(dst, src, n_elems * sizeof(*dst));
        return true;
    case DTYPE_F16:
    case DTYPE_BF16:
        for (size_t i = 0; i < n_elems; i++) {
            uint16_t half;
            memcpy(&half, bytes + 2 * i, sizeof(half));
            dst[i] = type == DTYPE_F16 ? dtype_f16_to_f32(half) : dtype_bf16_to_f32(half);
        }
        return true;
    case DTYPE_F8_E4M3:
        for (size_t i = 0; i < n_elems; i++)
            dst[i] = maths_f8_to_f32(bytes[i]);
        return true;
    default:
        break;
    }
    if (!dtype_is_quantized(type) || n_elems % types[type].elems != 0)
        return false;
    for (size_t i = 0; i < n_elems; i += types[type].elems, bytes += types[type].bytes)
        dequant_block(type, bytes, dst + i);
    return true;
}
