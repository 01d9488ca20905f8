/* dense_job.h: the arguments of the kernels of dense linears, and their launchers. Plain data for C
 * and CUDA; pointers are device addresses. Private to kernels/cuda. */
#pragma once

#include "kernels/cuda/dense_index.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix: y[m, n] = (x · Wᵀ)·scales + bias; then sum += y, and y may stay unwritten. */
struct dense_part {
    const void *w;        /* [n][row_bytes] */
    const float *w_scale; /* [n], NULL: 1 */
    const float *bias;    /* [n], NULL: none */
    float *y, *sum;       /* sum NULL: nothing to add to */
    size_t y_stride, sum_stride;
    uint32_t n;
};

struct dense_job {
    struct dense_part parts[DENSE_MAX_PARTS]; /* same form and K; gated: gate, up */
    uint32_t n_parts;
    uint32_t gated;       /* y of the gate part = activation(gate) · up */
    uint32_t activation;  /* enum activation */
    uint32_t gates_later; /* gated: rows of prompts keep gate and up as they are */
    uint16_t *half;       /* gated, [m][dense_act_stride(n)]: the activations of the next linear, in
                             the form of x, take the place of y. NULL: y is written */
    const void *x;        /* [m][x_stride], in the form's type of activations */
    size_t x_stride;      /* elements */
    const float *x_scale; /* [m], NULL: 1 */
    uint32_t m, k;
    size_t w_row_bytes;
    struct dense_slices slices;
};

/* Converts activations: dst[m][dense_act_stride(k)], zeros after column k. bf16 and f16 round to
 * nearest even; f16 saturates at ±65504; int8's are bf16 in dense_paired_at()'s order. Bytes:
 * 6·m·k. */
int cuda_launch_act_half(void *stream, uint16_t *dst, const float *x, size_t x_stride, uint32_t m,
                         uint32_t k, enum dense_form form);
struct norm_rows;
/* The norm of the job's x, rounded to f16 or bf16 like cuda_launch_act_half(); job->y is not
 * written. Bytes: 6·m·n + 4·n. */
int cuda_launch_norm_half(void *stream, uint16_t *dst, const struct norm_rows *job,
                          enum dense_form form);
/* The same with a scale per row: DENSE_F8 as cuda_launch_act_f8(), DENSE_F16 as
 * cuda_launch_act_f16(). Bytes: 5·m·n or 6·m·n, and 4·n. */
int cuda_launch_norm_scaled(void *stream, void *dst, float *scale, const struct norm_rows *job,
                            enum dense_form form);
/* Rows activation(gate) · up, rounded like cuda_launch_norm_scaled(). gate_bytes(n) may be at most
 * gate_max_bytes(). Bytes: 9·m·n or 10·m·n. */
struct gate_rows {
    const float *gate, *up; /* [n_rows][stride] */
    size_t gate_stride, up_stride;
    uint32_t n_rows, n, kind; /* kind: enum activation */
};
int cuda_launch_gate_scaled(void *stream, void *dst, float *scale, const struct gate_rows *job,
                            enum dense_form form);
/* largest[r] = max |x[r]|. Bytes: 4·m·k. */
int cuda_launch_act_largest(void *stream, float *largest, const float *x, size_t x_stride,
                            uint32_t m, uint32_t k);
/* E4M3 of x·448/largest; scale[r] = largest/448 (may be the same array). Bytes: 5·m·k. */
int cuda_launch_act_f8(void *stream, uint8_t *dst, float *scale, const float *largest,
                       const float *x, size_t x_stride, uint32_t m, uint32_t k);

/* f16 of x·2^e for the largest |x[r]| in [2^14, 2^15); scale[r] = 2^-e, NaN if that is infinite.
 * Bytes: 6·m·k, and 4·m·k out of a cache. */
int cuda_launch_act_f16(void *stream, uint16_t *dst, float *scale, const float *x, size_t x_stride,
                        uint32_t m, uint32_t k);

/* Allows the kernels of the current device the shared memory that they need. Call once per device,
 * before any launch. The limit per block is max_shared. */
int cuda_dense_allow_decode(uint32_t max_shared);
int cuda_dense_allow_prompt(uint32_t max_shared);
int cuda_dense_allow_gate(uint32_t max_shared);
/* The same bits for any m. With job->half the columns are a multiple of DENSE_ACT_MULTIPLE. */
int cuda_launch_dense_decode(void *stream, enum dense_form form, const struct dense_job *job,
                             uint32_t max_shared);
/* A single part, not f32; the same bits for any m and any place of a row. A row-split matrix is
 * summed by segments, others in one chain. */
int cuda_launch_dense_prompt(void *stream, enum dense_form form, const struct dense_job *job);
/* The same for f16 and bf16 by wgmma; adds bias and sum. Only on a device whose code has wgmma
 * (*out, on the device, is 1), and after cuda_dense_allow_wgmma(). */
int cuda_launch_wgmma_is_built(void *stream, uint32_t *out);
int cuda_dense_allow_wgmma(void);
/* Also several parts without segments, as one grid. */
int cuda_launch_dense_wgmma(void *stream, enum dense_form form, const struct dense_job *job);
/* Gate and up in one product: job->half is all that it writes. Both parts have n rows, no scales,
 * no sum, and a single slice. The bits are those of two products, act_mul and act_half. Operations:
 * 4·m·n·k. Bytes written: 2·m·n. */
int cuda_launch_dense_wgmma_gated(void *stream, enum dense_form form, const struct dense_job *job);
/* The same as cuda_launch_dense_wgmma(), for f8 too, with the copy engine, if
 * tensor_map_is_known(). The bits of f16 and bf16 are those of cuda_launch_dense_wgmma(). n_blocks:
 * the device's multiprocessors; the bits do not depend on their number. */
int cuda_dense_allow_ring(void);
int cuda_launch_dense_ring(void *stream, enum dense_form form, const struct dense_job *job,
                           uint32_t n_blocks);
/* cuda_launch_dense_wgmma_gated() in the same way. */
int cuda_launch_dense_ring_gated(void *stream, enum dense_form form, const struct dense_job *job,
                                 uint32_t n_blocks);

/* y[m, n] = x · row_scale · col_scale, after the sum over ranks. A scale that is NULL counts as 1.
 * Bytes: 8·m·n. */
int cuda_launch_dense_scale(void *stream, float *y, size_t y_stride, const float *x,
                            size_t x_stride, const float *row_scale, const float *col_scale,
                            uint32_t m, uint32_t n);

#ifdef __cplusplus
}
#endif
