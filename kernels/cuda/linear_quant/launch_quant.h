/* launch_quant.h: the kernels of quantized linears as C functions, in the manner of launch.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct norm_rows;
struct quant_embedding;
struct quant_linear;
struct quant_plan;
struct quant_rows;

/* In act_quant.cu: a block per row, n_rows > 0. */
int cuda_launch_act_quant(void *stream, const struct quant_rows *rows, bool stats, bool quantize);
/* Computes the norm of each row and then all of act_quant, in one block: rows->x is norm->y. Bytes:
 * 8·m·n more. */
int cuda_launch_norm_quant(void *stream, const struct norm_rows *norm,
                           const struct quant_rows *rows);
int cuda_launch_embed_quant(void *stream, float *y, size_t y_stride, const uint32_t *ids,
                            uint32_t n_rows, const struct quant_embedding *w);

/* In linear_quant_*.cu, by form; `plan` is quant_plan_of() for args. With several splits the sums
 * go to args->split, and cuda_launch_quant_finish() adds them. */
int cuda_launch_quant_4bit(void *stream, const struct quant_linear *args,
                           const struct quant_plan *plan);
int cuda_launch_quant_8bit(void *stream, const struct quant_linear *args,
                           const struct quant_plan *plan);
int cuda_launch_quant_super(void *stream, const struct quant_linear *args,
                            const struct quant_plan *plan);
int cuda_launch_quant_table(void *stream, const struct quant_linear *args,
                            const struct quant_plan *plan);
int cuda_launch_quant_finish(void *stream, const struct quant_linear *args, uint32_t n_splits);
/* linear_finish of parts[0]; with two planes its y holds the high plane. */
int cuda_launch_quant_rank_sums(void *stream, const struct quant_linear *args, const int32_t *low,
                                size_t low_stride, bool two_planes);
/* Allow all kernels up to max_shared bytes on the current device. */
int cuda_allow_quant_4bit(uint32_t max_shared);
int cuda_allow_quant_8bit(uint32_t max_shared);
int cuda_allow_quant_super(uint32_t max_shared);
int cuda_allow_quant_table(uint32_t max_shared);

#ifdef __cplusplus
}
#endif
