/* linear_cuda.h: linears of the CUDA backend (op table slots act_bytes to linear_finish). Rows of
 * generated tokens take path D, rows of prompts path P (struct stream.roles). Private to
 * kernels/cuda. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/act_header.h"
#include "kernels/cuda/act_quant_cuda.h"
#include "kernels/cuda/dense_job.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/segments.h"

struct cublaslt;
struct cublaslt_api;
struct error;
struct stream_cuda;

/* Prepared activations. The forms for dense weights are computed by the first linear that needs
 * them, and kept for later linears. Forms with statistics over the whole row are computed by
 * act_prepare. */
struct act_cuda {
    struct act base;
    struct device *device;
    const float *x; /* [n_rows][x_stride], borrowed; NULL: there is only `half` */
    size_t x_stride;
    void *memory;         /* the memory of all arrays below */
    uint16_t *half;       /* [max_rows + padding][dense_act_stride(k)]: f16, bf16 or int8's bf16 */
    uint16_t *other_half; /* as large; written while `half` is read */
    uint32_t half_form;   /* enum dense_form, ACT_SCALED_F16, or N_DENSE_FORMS: not computed yet */
    float *half_scale;    /* [max_rows] for ACT_SCALED_F16 */
    uint8_t *f8;          /* the same in E4M3 */
    float *f8_scale;      /* [max_rows] */
    struct act_quant quant;   /* ACT_INT8 */
    struct segments segments; /* the columns of the whole K, if has_segments */
    bool has_segments;
};

/* f16 with a scale per row, the activations of widened weights (linear_widen_cuda.h). */
enum { ACT_SCALED_F16 = N_DENSE_FORMS + 1 };

static inline struct act_cuda *act_cuda(const struct act *act)
{
    return (struct act_cuda *)(uintptr_t)
        act; /* forms computed on demand do not change the value, so the cast drops const */
}

/* Returns the kind of activations that weights of a form read. */
static inline uint32_t linear_act_kind(enum dense_form form)
{
    return form == DENSE_F8     ? ACT_F8
           : form == DENSE_F16  ? ACT_F16
           : form == DENSE_BF16 ? ACT_BF16
                                : ACT_F32;
}

size_t act_bytes_cuda(uint32_t max_rows, uint32_t max_k);
int act_create_cuda(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                    struct error *err);
void act_destroy_cuda(struct act *act);
int act_prepare_cuda(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                     const struct segments *segments, struct comm *comm);
int norm_prepare_cuda(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                      const struct norm_params *p, uint32_t kinds);
int linear_cuda(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w);
int linear_parts_cuda(struct stream *s, const struct act *act, const struct linear_part *parts,
                      uint32_t n_parts);
int linear_gated_cuda(struct stream *s, const struct act *act, const struct linear_part *gate,
                      const struct linear_part *up, enum activation kind);
int gated_prepare_cuda(struct stream *s, struct act *act, const struct linear_part *gate,
                       const struct linear_part *up, enum activation kind, uint32_t kinds,
                       const struct segments *segments, struct comm *comm);
int linear_partial_cuda(struct stream *s, struct tensor *partial, struct tensor *high,
                        const struct act *act, const struct weight *w);
int linear_finish_cuda(struct stream *s, struct tensor *y, const struct tensor *partial,
                       const struct act *act, const struct weight *w);

/* In act_dense_cuda.c: returns all n_rows rows in the form that linears of `form` read. */
int linear_act_dense_rows(struct stream_cuda *s, const struct act *act, enum dense_form form,
                          const void **out_x, size_t *out_stride, const float **out_scale);

/* Makes f8, or for other forms other_half, the activations that linears read: n_rows rows of k
 * columns in `form`. */
void linear_act_use(struct act *act, uint32_t k, enum dense_form form);
/* The same as ACT_SCALED_F16. */
int linear_act_scaled_rows(struct stream_cuda *s, const struct act *act, const void **out_x,
                           size_t *out_stride, const float **out_scale);
/* Prepares the integers of a run's rows (ACT_INT8), unless they are prepared already. */
int linear_act_int_rows(struct stream *s, const struct act *act, const struct role_run *run);

/* The same for widened weights: returns true if linear_act_gate_widened() may prepare rows of n
 * columns, after the products of gate and up. */
bool linear_act_gates_widened(const struct stream *s, const struct act *act, uint32_t n,
                              uint32_t kinds, const struct comm *comm);
int linear_act_gate_widened(struct stream *s, struct act *act, const struct tensor *gate,
                            const struct tensor *up, enum activation kind);

/* In linear_dense_cuda.c: the treatment of a piece of work's sums. */
enum dense_end {
    DENSE_WHOLE,    /* scales, bias, residual sum */
    DENSE_GATED,    /* two parts: gate and up */
    DENSE_PREPARED, /* the same, rounded to other_half of the act */
    DENSE_LATER,    /* the same, but rows of prompts keep gate and up as they are */
    DENSE_PARTIAL,  /* none: a rank's partial sums */
};
/* Computes parts of the same form and role, on dense weights. */
int linear_dense(struct stream *s, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts, enum dense_end end, enum activation kind);
/* Returns true if linear_dense_gated() can compute gate and up for linears that read `kinds`. */
bool linear_dense_gates(struct stream *s, const struct linear_part *gate,
                        const struct linear_part *up, uint32_t kinds, const struct comm *comm);
/* Does op gated_prepare. With f16 and bf16 a single kernel computes the next linear's activations.
 * With f8 a kernel computes these from the results of gate and up. */
int linear_dense_gated(struct stream *s, struct act *act, const struct linear_part *gate,
                       const struct linear_part *up, enum activation kind);
/* Returns true if two weights can be one piece of work. */
bool linear_dense_same(const struct weight *a, const struct weight *b);
/* Computes the run's rows of the job by path P, including bias and sum of each part. */
int linear_dense_prompt(struct stream_cuda *s, enum dense_form form, const struct dense_job *job,
                        const struct role_run *run);
int linear_dense_finish(struct stream *s, struct tensor *y, const struct tensor *partial,
                        const struct act *act, const struct weight *w);

/* In linear_cublaslt.c: path P of f16 and bf16 weights by cuBLASLt, which the first use opens.
 * *out_lt is owned. The job has a single part. The call reads up to CUBLASLT_ROWS rows after the
 * activations. */
enum { CUBLASLT_ROWS = 128 };
int linear_cublaslt_create(struct cublaslt **out_lt, struct error *err);
void linear_cublaslt_destroy(struct cublaslt *lt);
/* Returns the bytes that linear_cublaslt_prompt() needs at most for sums of segments of K
 * (stream_cuda.planes). */
size_t linear_cublaslt_planes_bytes(uint32_t max_rows, uint32_t max_n, uint32_t max_row_n);
int linear_cublaslt_prompt(struct stream_cuda *s, struct cublaslt *lt, enum dense_form form,
                           const struct dense_job *job);
