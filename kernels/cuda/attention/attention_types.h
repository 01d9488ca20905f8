/* attention_types.h: how tensor cores process each cache type. Selects the mma, and converts floats
 * to operands, and words of a page to fragments of K and V. Codes are widened to f16, exactly;
 * their scales multiply scores and weights. Included by the attention kernels alone. */
#pragma once

#include "kernels/cuda/attention/attention_maths.h"
#include "kernels/cuda/attention/attention_place.h"
#include "kernels/cuda/ptx.h"

/* A kernel's functions share one struct of registers. All must be inlined, otherwise the struct
 * would lie in memory. */
#ifdef __CUDACC__
#define ATTENTION_METHOD __device__ __forceinline__
#else
#define ATTENTION_METHOD inline
#endif

/* Common to the 16-bit types. */
struct kv_halves {
    static constexpr uint32_t elem_bytes = 2;
    static constexpr bool is_coded = false;
    static constexpr float unit = 1.0f; /* value = widened code · scale · unit */

    /* Sets operand B to step e (0 or 1) of a lane's 16 bytes of K. */
    CUDA_DEVICE void keys(uint32_t b[2], const uint32_t words[4], uint32_t e)
    {
        attention_keys(b, words, e);
    }

    /* Pairs the elements of a word of V at two positions: a pair of positions per element. */
    CUDA_DEVICE void values(uint32_t pairs[2], uint32_t x, uint32_t y)
    {
        pairs[0] = __byte_perm(x, y, 0x5410);
        pairs[1] = __byte_perm(x, y, 0x7632);
    }
};

struct kv_bf16 : kv_halves {
    static constexpr uint32_t exponent = ATTENTION_BF16_EXPONENT;

    CUDA_DEVICE uint32_t pack(float x, float y)
    {
        return pack_bf16x2(x, y);
    }
    CUDA_DEVICE void unpack(float out[2], uint32_t pair)
    {
        out[0] = __uint_as_float(attention_bf16_low(pair));
        out[1] = __uint_as_float(attention_bf16_high(pair));
    }
    CUDA_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
    {
        mma_m16n8k16_bf16(d, a, b);
    }
};

CUDA_DEVICE float attention_to_f16_range(float x)
{
    return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

/* Common to the types with f16 operands. */
template <typename Base> struct kv_as_f16 : Base {
    static constexpr uint32_t exponent = ATTENTION_F16_EXPONENT;

    CUDA_DEVICE uint32_t pack(float x, float y)
    {
        return pack_f16x2(attention_to_f16_range(x), attention_to_f16_range(y));
    }
    CUDA_DEVICE void unpack(float out[2], uint32_t pair)
    {
        unpack_f16x2(out, pair);
    }
    CUDA_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
    {
        mma_m16n8k16_f16(d, a, b);
    }
};

typedef kv_as_f16<kv_halves> kv_f16;

/* int8, stored + 128: the bits 0x6400 + byte are the f16 1024 + byte. */
struct kv_wide_i8 {
    static constexpr float unit = 1.0f;
    CUDA_DEVICE void widen(uint32_t pairs[2], uint32_t codes)
    {
        pairs[0] = sub_f16x2(__byte_perm(codes, 0x64646464u, 0x4140), 0x64806480u);
        pairs[1] = sub_f16x2(__byte_perm(codes, 0x64646464u, 0x4342), 0x64806480u);
    }
};

/* f8: attention_f8_halves(); kv_write stores no NaN codes. */
struct kv_wide_f8 {
    static constexpr float unit = 256.0f;
    CUDA_DEVICE void widen(uint32_t pairs[2], uint32_t codes)
    {
        pairs[0] = attention_f8_halves(__byte_perm(codes, 0, 0x1404));
        pairs[1] = attention_f8_halves(__byte_perm(codes, 0, 0x3424));
    }
};

/* f8 by the conversion of compute capability 8.9 and above: the same values, 256 times as large. */
struct kv_cvt_f8 {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    static constexpr float unit = 1.0f;
    CUDA_DEVICE void widen(uint32_t pairs[2], uint32_t codes)
    {
        unpack_e4m3x4(pairs, codes);
    }
#else
    static constexpr float unit = kv_wide_f8::unit;
    CUDA_DEVICE void widen(uint32_t pairs[2], uint32_t codes)
    {
        kv_wide_f8::widen(pairs, codes);
    }
#endif
};

/* Common to the coded types. */
template <typename Wide> struct kv_codes : Wide {
    static constexpr uint32_t elem_bytes = 1;
    static constexpr bool is_coded = true;

    CUDA_DEVICE void keys(uint32_t b[2], const uint32_t words[4], uint32_t e)
    {
        Wide::widen(b, words[e]);
    }
    CUDA_DEVICE void values(uint32_t pairs[4], uint32_t x, uint32_t y)
    {
        Wide::widen(pairs, __byte_perm(x, y, 0x5140));
        Wide::widen(pairs + 2, __byte_perm(x, y, 0x7362));
    }
};

typedef kv_as_f16<kv_codes<kv_wide_i8>> kv_i8;
typedef kv_as_f16<kv_codes<kv_wide_f8>> kv_f8;
typedef kv_as_f16<kv_codes<kv_cvt_f8>> kv_f8_by_cvt;

/* Either coded type; the kernel distinguishes them at run time. */
struct kv_any_codes {
    static constexpr uint32_t elem_bytes = 1;
    static constexpr bool is_coded = true;
};
typedef kv_as_f16<kv_any_codes> kv_coded;

/* ALiBi of a query's scores. Without ALiBi the struct takes no register and no instruction. */
template <bool ALIBI> struct attention_bias {
    ATTENTION_METHOD void begin(const struct attention_cuda *a, uint32_t head, uint32_t position)
    {
        (void)a;
        (void)head;
        (void)position;
    }
    ATTENTION_METHOD float of(float score, uint32_t position) const
    {
        (void)position;
        return score;
    }
};

template <> struct attention_bias<true> {
    float slope;
    uint32_t own; /* position of the query, counted from the same origin as the keys' */

    ATTENTION_METHOD void begin(const struct attention_cuda *a, uint32_t head, uint32_t position)
    {
        slope =
            head < a->n_heads ? attention_scaled(__ldg(a->slopes + head), ATTENTION_LOG2E) : 0.0f;
        own = position;
    }
    ATTENTION_METHOD float of(float score, uint32_t position) const
    {
        return attention_alibi(score, slope, (int32_t)(position - own));
    }
};

/* Returns the rounding errors of x and y in `pair`, as a pair. */
template <typename Kv> CUDA_DEVICE uint32_t attention_rest(float x, float y, uint32_t pair)
{
    float kept[2];
    Kv::unpack(kept, pair);
    return Kv::pack(x - kept[0], y - kept[1]);
}

CUDA_DEVICE float attention_quad_max(float x)
{
    float other = __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    x = other > x ? other : x;
    other = __shfl_xor_sync(0xFFFFFFFFu, x, 2);
    return other > x ? other : x;
}

CUDA_DEVICE float attention_quad_sum(float x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}
