/* widen.h: quantized weights as f16, for rows of prompts (docs/house/numerics.md, "Prompts on a
 * GPU"). The integer W of a weight becomes the f16 nearest to W·2^-shift. The product's sums are
 * then multiplied by the row's unit times 2^shift. The forms of 4 bits have |W| ≤ 2037 and lose
 * nothing. Q8_0 and IQ4_NL have |W| ≤ 32640, MXFP4 has |W| ≤ 24576; the others have |W| < 2^25.01
 * and shift 10. Those round once, by at most 2^-11 of a weight (W beyond 2^24 also by 2^-25, on the
 * way to a float).
 *
 * Arguments and launcher of widen.cu, and its functions of plain numbers for the GPU and the CPU.
 * A warp has a panel's pair (16 rows, 64 columns; quant_index.h). A lane has the four columns of
 * each of its eight words. */
#pragma once

#include "kernels/cuda/linear_quant/quant_place.h"

enum {
    WIDEN_THREADS = 128,
    WIDEN_WARPS = WIDEN_THREADS / CUDA_WARP,
    WIDEN_PAIRS = 4, /* adjacent pairs of a warp: 512 bytes of a row of results */
    WIDEN_BLOCK_PAIRS = WIDEN_WARPS * WIDEN_PAIRS,
    WIDEN_WORDS = 4, /* words of a lane in a run */
    WIDEN_SHIFT = 10,
};

struct widen_job {
    const uint8_t *data; /* panels; the first row of the first one is row 0 */
    const float *units;  /* [n_rows] */
    struct quant_layout layout;
    uint32_t n_rows, k;
    uint16_t *to;    /* [n_rows][stride] */
    size_t stride;   /* elements, a multiple of 32, at least k */
    float *to_units; /* [n_rows] unit · 2^shift */
};

/* Returns 2^shift. */
QUANT_FN float widen_unit_factor(uint32_t form)
{
    return form == QUANT_INT4 || form == QUANT_INT4_PLAIN || form == QUANT_INT8 ||
                   form == QUANT_IQ4_NL || form == QUANT_MXFP4
               ? 1.0f
               : (float)(1 << WIDEN_SHIFT);
}

/* Returns the unit that belongs to the widened row. */
CUDA_HD float widen_unit(uint32_t form, float unit)
{
    return unit * widen_unit_factor(form);
}

/* Returns the number that becomes an f16. */
CUDA_HD float widen_float(uint32_t form, int32_t w)
{
    return (float)w * (1.0f / widen_unit_factor(form));
}

/* --- distribution --- */

CUDA_HD uint32_t widen_n_panels(uint32_t n_rows)
{
    return (n_rows + QUANT_ROWS - 1) / QUANT_ROWS;
}

/* Returns the blocks that share a panel. */
CUDA_HD uint32_t widen_n_blocks(uint32_t n_pairs)
{
    return (n_pairs + WIDEN_BLOCK_PAIRS - 1) / WIDEN_BLOCK_PAIRS;
}

/* Returns pair i of a thread's warp; it may be beyond the last. */
CUDA_HD uint32_t widen_pair_of(uint32_t block, uint32_t thread, uint32_t i)
{
    return (block * WIDEN_WARPS + thread / CUDA_WARP) * WIDEN_PAIRS + i;
}

/* Returns the byte of a pair within its panel. */
CUDA_HD size_t widen_pair_at(uint32_t form, uint32_t pair)
{
    return (size_t)pair * quant_pair_bytes(form);
}

/* Returns the row of a lane's word. */
CUDA_HD uint32_t widen_row(uint32_t panel, uint32_t word, uint32_t lane)
{
    return panel * QUANT_ROWS + word % 2 * 8 + fragment_group(lane);
}

/* Returns the first of the word's four columns. */
CUDA_HD uint32_t widen_column(uint32_t pair, uint32_t run, uint32_t word, uint32_t lane)
{
    return pair * QUANT_PAIR + run * QUANT_RUN + word / 2 * 16 + fragment_member(lane) * 4;
}

/* Returns the sub-block of a word in its run. */
CUDA_HD uint32_t widen_sub(uint32_t form, uint32_t word)
{
    return quant_subs(form) == 2 ? word / 2 : 0;
}

/* Returns which of the lane's two rows a word belongs to: g or g + 8. */
CUDA_HD uint32_t widen_half(uint32_t word)
{
    return word % 2;
}

/* --- the integers --- */

/* Returns the byte of a panel with isd of a lane's rows, for a run; ism is QUANT_ISM_AT further. */
CUDA_HD size_t widen_super_at(const struct quant_layout *l, uint32_t pair, uint32_t run,
                              uint32_t lane)
{
    return quant_super_place(l, 2 * pair + run, fragment_group(lane));
}

/* Returns the byte of a panel with the 16 bytes of offsets of a lane's rows, for four runs. */
CUDA_HD size_t widen_offsets_at(const struct quant_layout *l, uint32_t pair, uint32_t lane)
{
    return quant_offset_place(l, pair / 2 * 4, fragment_group(lane));
}

/* Returns the offset of a run, from the words of high and low bytes of its row. */
CUDA_HD int32_t widen_offset(uint32_t high, uint32_t low, uint32_t pair, uint32_t run)
{
    uint32_t shift = (pair % 2 * 2 + run) * 8;
    return (int16_t)((high >> shift & 0xFF) << 8 | (low >> shift & 0xFF));
}

/* Returns W of byte j of a word: factor·(code − zero) + offset. */
CUDA_HD int32_t widen_integer(uint32_t form, uint32_t word, uint32_t j, int32_t factor,
                              int32_t offset)
{
    int32_t code = (int32_t)(word >> 8 * j & 0xFF);
    if (quant_is_signed(form))
        code = (code ^ 128) - 128;
    return factor * (code - quant_zero(form)) + offset;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Widens a matrix. Bytes: those of the weight, and 2·n_rows·k written. Bound: memory. */
int cuda_launch_widen(void *stream, const struct widen_job *job);

#ifdef __cplusplus
}
#endif
