#include "kernels/dtype.h"

#include <string.h>

#include "kernels/dequant.h"

static const struct {
    const char *name;
    uint16_t elems, bytes;
    bool quantized;
} types[N_DTYPES] = {
    [DTYPE_F32] = {"F32", 1, 4, false},      [DTYPE_F16] = {"F16", 1, 2, false},
    [DTYPE_BF16] = {"BF16", 1, 2, false},    [DTYPE_Q8_0] = {"Q8_0", 32, 34, true},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, true},   [DTYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22, true},   [DTYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [DTYPE_Q2_K] = {"Q2_K", 256, 84, true},  [DTYPE_Q3_K] = {"Q3_K", 256, 110, true},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144, true}, [DTYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, true}, [DTYPE_I8] = {"I8", 1, 1, false},
    [DTYPE_I32] = {"I32", 1, 4, false},      [DTYPE_U32] = {"U32", 1, 4, false},
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

float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1F,
             fraction = bits & 0x3FF, out;
    if (exponent == 0x1F) {
        out = sign | 0x7F800000u | fraction << 13;
    } else if (exponent != 0) {
        out = sign | (exponent + 112) << 23 | fraction << 13;
    } else if (fraction == 0) {
        out = sign;
    } else { /* subnormal: normalise; every half is a normal float */
        uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21;
        out = sign | (113 - shift) << 23 | (fraction << shift & 0x3FF) << 13;
    }
    float value;
    memcpy(&value, &out, sizeof(value));
    return value;
}

float bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN: quiet, the top of its payload kept */
        return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) /* rounds to 2^16 or beyond */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x33000000) /* below half the smallest subnormal */
        return (uint16_t)sign;
    uint32_t drop, kept;
    if (magnitude >= 0x38800000) {
        drop = 13;
        kept = magnitude - 0x38000000;
    } else { /* subnormal half: the implicit bit becomes explicit, the exponent becomes a shift */
        drop = 126 - (magnitude >> 23);
        kept = (magnitude & 0x7FFFFF) | 0x800000;
    }
    uint32_t rest = kept & ((1u << drop) - 1), half = 1u << (drop - 1), out = kept >> drop;
    if (rest > half || (rest == half && (out & 1)))
        out++;
    return (uint16_t)(sign | out);
}

uint16_t f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
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
            dst[i] = type == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        }
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
