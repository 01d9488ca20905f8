/* launch.h: the CUDA kernels as C functions. Each function queues a kernel on `stream` (a
 * cudaStream_t) of the current device and returns a cudaError_t (0: queued). Pointers are device
 * addresses. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attention_cuda;
struct decode_plan;
struct embed_cuda;
struct kv_cuda;
struct norm_rows;
struct rope_cuda;
struct sample_params;
struct sample_result;
struct sample_state;
struct scale_cuda;

/* RMS norm or layer norm of rows (norm_row.h). Bytes: 8·m·n + 4·n; bound: memory. */
int cuda_launch_norm(void *stream, const struct norm_rows *rows);

/* The ops of row_ops.h over rows; strides in elements. A block per row (add, act_mul: a piece of a
 * row; kv_write: a row and KV head; gather_rows: y[r] = x[index[r]]). `positions`, `slots`,
 * `index`, `ids` are on the device. An id without a row gives NaN; a slot beyond the pool is
 * skipped. */
int cuda_launch_embed(void *stream, float *y, size_t y_stride, const uint32_t *ids, uint32_t n_rows,
                      const struct embed_cuda *w);
/* y += factor · x. x_stride 0: the same row for all (a bias). */
int cuda_launch_add(void *stream, float *y, size_t y_stride, const float *x, size_t x_stride,
                    uint32_t n_rows, uint32_t n_cols, float factor);
int cuda_launch_scale(void *stream, float *x, size_t x_stride, const uint32_t *positions,
                      uint32_t n_rows, uint32_t n_cols, const struct scale_cuda *p);
/* kind: enum activation; up may be NULL. */
int cuda_launch_act_mul(void *stream, float *y, size_t y_stride, const float *gate,
                        size_t gate_stride, const float *up, size_t up_stride, uint32_t n_rows,
                        uint32_t n_cols, int kind);
int cuda_launch_rope(void *stream, float *x, size_t x_stride, uint32_t n_rows, uint32_t n_heads,
                     const uint32_t *positions, const struct rope_cuda *p);
int cuda_launch_kv_write(void *stream, const struct kv_cuda *kv, const float *k, size_t k_stride,
                         const float *v, size_t v_stride, const uint32_t *slots, uint32_t n_rows);
/* rope of q and k, and kv_write of the resulting k and of v. A block per row and KV head also
 * computes its share of q's heads. */
int cuda_launch_rope_kv(void *stream, float *q, size_t q_stride, uint32_t n_heads,
                        const uint32_t *positions, const struct rope_cuda *p,
                        const struct kv_cuda *kv, float *k, size_t k_stride, const float *v,
                        size_t v_stride, const uint32_t *slots, uint32_t n_rows);
int cuda_launch_gather_rows(void *stream, float *y, size_t y_stride, const float *x,
                            size_t x_stride, const uint32_t *index, uint32_t n_rows,
                            uint32_t n_cols);

/* y[m, n] = the contract's tree over up to 8 planes; rows are row_stride and planes plane_stride
 * elements apart. Bit p of `present` marks plane p as present. Bytes: 4·m·n·(planes + 1). */
int cuda_launch_tree_sum(void *stream, float *y, size_t y_stride, const float *planes,
                         size_t plane_stride, size_t row_stride, uint32_t present, uint32_t n_rows,
                         uint32_t n_cols);

/* Runs one phase of each row of logits[m, vocab] with n_parts blocks (sample_pass.h);
 * sample_n_launches() launches finish a row. `states` [m] must be zero before the first. `scratch`
 * has m · sample_scratch_of() bytes, 256-byte aligned. All memory is the device's, including the
 * arrays that params points to. */
int cuda_launch_sample(void *stream, const float *logits, size_t row_stride, uint32_t n_rows,
                       uint32_t vocab, uint32_t n_parts, const struct sample_params *params,
                       struct sample_state *states, unsigned char *scratch,
                       struct sample_result *results);

/* The same in one launch for rows that sample_is_plain() (sample_state.h), without an upload.
 * `params` (host) is any row's. `tickets` [m] are zero before and after. */
int cuda_launch_sample_plain(void *stream, const float *logits, size_t row_stride, uint32_t n_rows,
                             uint32_t vocab, uint32_t n_parts, const struct sample_params *params,
                             uint32_t *tickets, unsigned char *scratch,
                             struct sample_result *results);

/* attention_*_kernel.h: rows [a->row_begin, + a->n_rows) of a; positions, seq_of_row and
 * block_tables are device addresses. decode: if attention_is_tiled(); plain: for all shapes. Both
 * write the groups' results to a->parts, if it is not NULL, for combine. */
int cuda_launch_attention_decode(void *stream, const struct attention_cuda *a,
                                 const struct decode_plan *plan);
int cuda_launch_attention_plain(void *stream, const struct attention_cuda *a,
                                const struct decode_plan *plan);
int cuda_launch_attention_combine(void *stream, const struct attention_cuda *a);
/* decode by teams of warps, if attention_is_tiled() and team_is_possible(): the same bits. */
int cuda_launch_attention_team(void *stream, const struct attention_cuda *a,
                               const struct decode_plan *plan);
/* Prompt rows, if attention_is_tiled(). */
int cuda_launch_attention_prefill(void *stream, const struct attention_cuda *a);
/* The same by wgmma, if wga_takes(). Only on a device whose code has wgmma (dense_job.h). */
int cuda_launch_attention_wgmma(void *stream, const struct attention_cuda *a);

#ifdef __cplusplus
}
#endif
