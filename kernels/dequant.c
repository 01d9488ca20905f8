#include "kernels/dequant.h"

#include <assert.h>
#include <string.h>

#include "kernels/dequant_at.h"

/* The order of the float operations below is part of the format as the `gguf` package computes it:
 * first scale × sub-scale, then × code, then the offset. */

static void dequant_32(enum dtype type, const uint8_t *block, float *dst)
{
    float d = dequant_half_at(block);
    if (type == DTYPE_Q8_0) {
        for (unsigned i = 0; i < 32; i++)
            dst[i] = d * (float)(int8_t)block[2 + i];
    } else if (type == DTYPE_Q4_0) {
        for (unsigned i = 0; i < 32; i++)
            dst[i] = d * (float)((int)dequant_nibble_at(block + 2, i) - 8);
    } else if (type == DTYPE_Q4_1) {
        float m = dequant_half_at(block + 2);
        for (unsigned i = 0; i < 32; i++)
            dst[i] = d * (float)dequant_nibble_at(block + 4, i) + m;
    } else if (type == DTYPE_Q5_0) {
        for (unsigned i = 0; i < 32; i++) {
            unsigned high = (block[2 + i / 8] >> i % 8 & 1u) << 4;
            dst[i] = d * (float)((int)(dequant_nibble_at(block + 6, i) | high) - 16);
        }
    } else {
        assert(type == DTYPE_Q5_1);
        float m = dequant_half_at(block + 2);
        for (unsigned i = 0; i < 32; i++) {
            unsigned high = (block[4 + i / 8] >> i % 8 & 1u) << 4;
            dst[i] = d * (float)(dequant_nibble_at(block + 8, i) | high) + m;
        }
    }
}

static void dequant_q2_k(const uint8_t *block, float *dst)
{
    const uint8_t *scales = block, *qs = block + 16;
    float d = dequant_half_at(block + 80), dmin = dequant_half_at(block + 82);
    for (unsigned e = 0; e < 256; e++) {
        float dl = d * (float)(scales[e / 16] & 15), ml = dmin * (float)(scales[e / 16] >> 4);
        dst[e] = dl * (float)dequant_pair_at(qs, e) - ml;
    }
}

static void dequant_q3_k(const uint8_t *block, float *dst)
{
    const uint8_t *hmask = block, *qs = block + 32, *scales = block + 96;
    float d = dequant_half_at(block + 108);
    for (unsigned e = 0; e < 256; e++) {
        unsigned i = e / 16;
        unsigned low = scales[i % 8] >> i / 8 * 4 & 15u, high = scales[8 + i % 4] >> i / 4 * 2 & 3u;
        float dl = d * (float)((int)(low | high << 4) - 32);
        /* a clear mask bit subtracts 4 */
        int q = (int)dequant_pair_at(qs, e) - (hmask[e % 32] >> e / 32 & 1 ? 0 : 4);
        dst[e] = dl * (float)q;
    }
}

static void dequant_q45_k(enum dtype type, const uint8_t *block, float *dst)
{
    float d = dequant_half_at(block), dmin = dequant_half_at(block + 2);
    const uint8_t *scales = block + 4, *qh = block + 16,
                  *qs = type == DTYPE_Q5_K ? block + 48 : block + 16;
    for (unsigned sub = 0; sub < 8; sub++) {
        unsigned scale, min;
        dequant_scale_min(scales, sub, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        for (unsigned i = 0; i < 32; i++) {
            unsigned q = qs[sub / 2 * 32 + i] >> sub % 2 * 4 & 15u;
            if (type == DTYPE_Q5_K)
                q |= (qh[i] >> sub & 1u) << 4;
            dst[sub * 32 + i] = dl * (float)q - ml;
        }
    }
}

static void dequant_q6_k(const uint8_t *block, float *dst)
{
    const uint8_t *ql = block, *qh = block + 128, *scales = block + 192;
    float d = dequant_half_at(block + 208);
    for (unsigned e = 0; e < 256; e++) {
        unsigned half = e / 128, run = e / 32 % 4, i = e % 32;
        unsigned low = ql[half * 64 + run % 2 * 32 + i] >> run / 2 * 4 & 15u,
                 high = qh[half * 32 + i] >> run * 2 & 3u;
        float dl = d * (float)(int8_t)scales[e / 16];
        dst[e] = dl * (float)((int)(low | high << 4) - 32);
    }
}

const int8_t *dequant_table(enum dtype type)
{
    static const int8_t iq4[16] = DEQUANT_IQ4_TABLE, mxfp4[16] = DEQUANT_MXFP4_TABLE;
    return type == DTYPE_MXFP4 ? mxfp4 : type == DTYPE_IQ4_NL || type == DTYPE_IQ4_XS ? iq4 : NULL;
}

static void dequant_by_table(enum dtype type, const uint8_t *block, float *dst)
{
    struct dequant_run run;
    const int8_t *table = dequant_table(type);
    for (unsigned b = 0; b < dtype_block_elems(type) / 32; b++) {
        dequant_run_exact(type, block, b, &run);
        float d = run.d * (float)run.scales[0];
        for (unsigned i = 0; i < 32; i++)
            dst[b * 32 + i] = d * (float)table[run.q[i]];
    }
}

void dequant_block(enum dtype type, const uint8_t *block, float *dst)
{
    switch (type) {
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
    case DTYPE_MXFP4:
        dequant_by_table(type, block, dst);
        break;
    case DTYPE_Q2_K:
        dequant_q2_k(block, dst);
        break;
    case DTYPE_Q3_K:
        dequant_q3_k(block, dst);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        dequant_q45_k(type, block, dst);
        break;
    case DTYPE_Q6_K:
        dequant_q6_k(block, dst);
        break;
    default:
        dequant_32(type, block, dst);
        break;
    }
}

bool dequant_is_4bit(enum dtype type)
{
    return type == DTYPE_Q4_0 || type == DTYPE_Q4_1 || type == DTYPE_Q4_K;
}

void dequant_scales_4bit(enum dtype type, const uint8_t *row, size_t i_run, float *out_d,
                         float *out_m)
{
    if (type == DTYPE_Q4_K) {
        const uint8_t *block = row + i_run / 8 * 144;
        unsigned scale, min;
        dequant_scale_min(block + 4, (unsigned)(i_run % 8), &scale, &min);
        *out_d = dequant_half_at(block) * (float)scale;
        *out_m = -(dequant_half_at(block + 2) * (float)min);
        return;
    }
    const uint8_t *block = row + i_run * dtype_block_bytes(type);
    *out_d = dequant_half_at(block);
    *out_m = type == DTYPE_Q4_0 ? -8.0f * *out_d : dequant_half_at(block + 2);
}

/* Loops that compilers can vectorise. */
void dequant_run_4bit(enum dtype type, const uint8_t *row, size_t i_run, float *out_d, float *out_m,
                      uint8_t out_q[32])
{
    dequant_scales_4bit(type, row, i_run, out_d, out_m);
    if (type == DTYPE_Q4_K) {
        unsigned sub = (unsigned)(i_run % 8);
        const uint8_t *qs = row + i_run / 8 * 144 + 16 + (size_t)(sub / 2) * 32;
        if (sub % 2 == 0)
            for (unsigned i = 0; i < 32; i++)
                out_q[i] = qs[i] & 15u;
        else
            for (unsigned i = 0; i < 32; i++)
                out_q[i] = qs[i] >> 4;
        return;
    }
    const uint8_t *qs = row + i_run * dtype_block_bytes(type) + (type == DTYPE_Q4_0 ? 2 : 4);
    for (unsigned i = 0; i < 16; i++)
        out_q[i] = qs[i] & 15u;
    for (unsigned i = 0; i < 16; i++)
        out_q[16 + i] = qs[i] >> 4;
}

unsigned dequant_zero(enum dtype type)
{
    return type == DTYPE_Q6_K ? 32 : type == DTYPE_Q5_0 ? 16 : type == DTYPE_Q3_K ? 4 : 0;
}

static void exact_run_32(enum dtype type, const uint8_t *block, struct dequant_run *out)
{
    const uint8_t *high = block + (type == DTYPE_Q5_0 ? 2 : 4), *qs = high + 4;
    *out = (struct dequant_run){.d = dequant_half_at(block), .scales = {1, 1}};
    if (type == DTYPE_Q5_1) {
        out->m = dequant_half_at(block + 2);
        out->mins[0] = out->mins[1] = 1;
    }
    for (unsigned i = 0; i < 32; i++)
        out->q[i] = (uint8_t)(dequant_nibble_at(qs, i) | (high[i / 8] >> i % 8 & 1u) << 4);
}

/* Decodes run `sub` of a block of 256. */
static void exact_run_k(enum dtype type, const uint8_t *block, unsigned sub,
                        struct dequant_run *out)
{
    unsigned scale, min;
    const uint8_t *scales;
    switch (type) {
    case DTYPE_Q5_K:
        dequant_scale_min(block + 4, sub, &scale, &min);
        *out = (struct dequant_run){.d = dequant_half_at(block),
                                    .m = -dequant_half_at(block + 2),
                                    .scales = {(int8_t)scale, (int8_t)scale},
                                    .mins = {(uint8_t)min, (uint8_t)min}};
        for (unsigned i = 0; i < 32; i++)
            out->q[i] = (uint8_t)((block[48 + sub / 2 * 32 + i] >> sub % 2 * 4 & 15u) |
                                  (block[16 + i] >> sub & 1u) << 4);
        return;
    case DTYPE_Q6_K:
        *out = (struct dequant_run){.d = dequant_half_at(block + 208)};
        memcpy(out->scales, block + 192 + 2 * (size_t)sub, 2);
        for (unsigned i = 0; i < 32; i++) {
            unsigned low = block[sub / 4 * 64 + sub % 2 * 32 + i] >> sub % 4 / 2 * 4 & 15u,
                     high = block[128 + sub / 4 * 32 + i] >> sub % 4 * 2 & 3u;
            out->q[i] = (uint8_t)(low | high << 4);
        }
        return;
    case DTYPE_Q3_K:
        *out = (struct dequant_run){.d = dequant_half_at(block + 108)};
        scales = block + 96;
        for (unsigned h = 0; h < 2; h++) {
            unsigned i = 2 * sub + h, low = scales[i % 8] >> i / 8 * 4 & 15u,
                     high = scales[8 + i % 4] >> i / 4 * 2 & 3u;
            out->scales[h] = (int8_t)((int)(low | high << 4) - 32);
        }
        for (unsigned i = 0; i < 32; i++)
            out->q[i] =
                (uint8_t)(dequant_pair_at(block + 32, sub * 32 + i) | (block[i] >> sub & 1u) << 2);
        return;
    default:
        assert(type == DTYPE_Q2_K);
        *out = (struct dequant_run){.d = dequant_half_at(block + 80),
                                    .m = -dequant_half_at(block + 82)};
        for (unsigned h = 0; h < 2; h++) {
            out->scales[h] = block[2 * sub + h] & 15;
            out->mins[h] = block[2 * sub + h] >> 4;
        }
        for (unsigned i = 0; i < 32; i++)
            out->q[i] = (uint8_t)dequant_pair_at(block + 16, sub * 32 + i);
    }
}

/* Decodes run `sub` of a block of a format with a table. */
static void exact_run_table(enum dtype type, const uint8_t *block, unsigned sub,
                            struct dequant_run *out)
{
    const uint8_t *qs = block + (type == DTYPE_MXFP4 ? 1 : 2);
    int8_t scale = 1;
    *out = (struct dequant_run){.d = type == DTYPE_MXFP4 ? dequant_e8m0_half(block[0])
                                                         : dequant_half_at(block)};
    if (type == DTYPE_IQ4_XS) {
        qs = block + 8 + (size_t)16 * sub;
        scale = (int8_t)dequant_iq4_xs_scale(block, sub);
    }
    out->scales[0] = out->scales[1] = scale;
    for (unsigned i = 0; i < 16; i++) {
        out->q[i] = qs[i] & 15;
        out->q[16 + i] = qs[i] >> 4;
    }
}

void dequant_run_exact(enum dtype type, const uint8_t *row, size_t i_run, struct dequant_run *out)
{
    size_t per_block = dtype_block_elems(type) / 32;
    const uint8_t *block = row + i_run / per_block * dtype_block_bytes(type);
    if (dequant_table(type) != NULL)
        exact_run_table(type, block, (unsigned)(i_run % per_block), out);
    else if (per_block == 1)
        exact_run_32(type, block, out);
    else
        exact_run_k(type, block, (unsigned)(i_run % per_block), out);
}
