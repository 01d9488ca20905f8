/* table_cuda.h: the kernel set of the CUDA backend. Private to kernels/cuda. */
#pragma once

#include "kernels/ops.h"

/* The kernel set of this process. SLUICE_CUDA_PROMPTS chooses the code that computes prompts' dense
 * products, and so their bits: "auto" (default), "own", "wgmma" or "cublaslt". "own" runs on all
 * devices, "wgmma" on compute capability 9.0 alone. "auto" uses wgmma if the device passes a check
 * when it is opened (prompts_cuda.c), else own. With "cublaslt" a device test must first show that
 * bits do not depend on the number of rows. The set's numerics name contains the choice. Choosing
 * fails with INVALID_ARGUMENT for another value. Choosing fails with FAILED_PRECONDITION if
 * cuBLASLt is requested and cannot be opened. Any thread. */
int table_cuda_choose(struct error *err);
const struct op_table *op_table_cuda(void);
/* The code that computes prompts' products of f16 and bf16 weights. */
enum cuda_prompts { CUDA_PROMPTS_AUTO, CUDA_PROMPTS_OWN, CUDA_PROMPTS_WGMMA, CUDA_PROMPTS_LT };
const char *cuda_prompts_name(enum cuda_prompts prompts);
enum cuda_prompts table_cuda_prompts(void);
/* The code that computes prompts' attention, chosen by SLUICE_CUDA_ATTENTION. "mma" runs on all
 * devices. "wgmma" runs on compute capability 9.0 alone, and for the models that wga_takes()
 * (attention_wgmma_index.h) names; other models keep "mma". "auto" (default) uses wgmma if the
 * device passes a check (attention_check_cuda.c), else mma. With wgmma the set's numerics name ends
 * in "-attn". */
enum cuda_attention { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_MMA, CUDA_ATTENTION_WGMMA };
enum cuda_attention table_cuda_attention(void);
/* The code that computes prompts' products of f8 weights, chosen by SLUICE_CUDA_FP8. "own" runs on
 * all devices, "wgmma" on compute capability 9.0 alone, with a driver of CUDA 12.0 or newer. "auto"
 * (default) uses wgmma if the device passes a check (fp8_check_cuda.c), else own. With wgmma the
 * set's numerics name contains "-fp8wgmma". */
enum cuda_fp8 { CUDA_FP8_AUTO, CUDA_FP8_OWN, CUDA_FP8_WGMMA };
enum cuda_fp8 table_cuda_fp8(void);
/* Copies of the wgmma product of f16 and bf16 weights into shared memory. SLUICE_CUDA_FETCH chooses
 * its "threads" (default) or the copy "engine". The bits are the same. */
enum cuda_fetch { CUDA_FETCH_THREADS, CUDA_FETCH_ENGINE };
enum cuda_fetch table_cuda_fetch(void);
/* Prompts' products of several f16 or bf16 matrices that read the same activations (Q, K and V).
 * SLUICE_CUDA_JOIN chooses "parts" (default), one product for all, or "off", a product each. Only
 * the wgmma kernel whose threads copy joins parts. The bits are the same. */
enum cuda_join { CUDA_JOIN_PARTS, CUDA_JOIN_OFF };
enum cuda_join table_cuda_join(void);
/* With "auto": records the choice of the device opened last, for the numerics name. A program that
 * computes opens its device before it asks for the name. */
void table_cuda_settle(enum cuda_prompts prompts);
void table_cuda_settle_attention(enum cuda_attention attention);
void table_cuda_settle_fp8(enum cuda_fp8 fp8);

/* attention_check_cuda.c: sets *out_why_not (static) if the current device's attention by wgmma
 * should not be used. Fails if the device is lost. */
int attention_check_cuda(uint32_t index, const char **out_why_not, struct error *err);
/* fp8_check_cuda.c: the same for products of f8 weights by wgmma. cuda_dense_allow_prompt() and
 * cuda_dense_allow_ring() must have been called. */
int fp8_check_cuda(uint32_t index, const char **out_why_not, struct error *err);
/* prompts_cuda.c: ends such a check. Frees the check's device memory. If `code`, the check's CUDA
 * error, is not 0, the code under check is not used, and *out_why_not becomes `not_run` (static).
 * Fails if the device is lost. */
int prompts_end_check_cuda(uint32_t index, int code, void *const *memory, size_t n_memory,
                           const char *not_run, const char **out_why_not, struct error *err);

/* row_ops_cuda.c */
int embed_cuda(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w);
int rms_norm_cuda(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                  uint32_t n_w, float eps);
int layer_norm_cuda(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                    const float *b, uint32_t n_w, float eps);
int add_cuda(struct stream *s, struct tensor *y, const struct tensor *x, float factor);
int add_bias_cuda(struct stream *s, struct tensor *y, const float *bias);
int scale_cuda(struct stream *s, struct tensor *x, const uint32_t *positions,
               const struct scale_params *params);
int act_mul_cuda(struct stream *s, struct tensor *y, const struct tensor *gate,
                 const struct tensor *up, enum activation kind);
int rope_cuda(struct stream *s, struct tensor *x, const uint32_t *positions,
              const struct rope_params *params);
int kv_write_cuda(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                  const struct tensor *v, const uint32_t *kv_slots);
int rope_kv_cuda(struct stream *s, struct tensor *q, struct tensor *k, const struct tensor *v,
                 const uint32_t *positions, const struct rope_params *params,
                 const struct kv_layer *kv, const uint32_t *kv_slots);
int copy_heads_cuda(struct stream *s, struct tensor *y, const struct tensor *x, uint32_t n_heads,
                    uint32_t width, uint32_t y_head, uint32_t y_first);
int gather_rows_cuda(struct stream *s, struct tensor *y, const struct tensor *x,
                     const uint32_t *index);

/* attention_cuda.c */
int attention_cuda(struct stream *s, struct tensor *y, const struct tensor *q,
                   const struct kv_layer *kv, const struct attention_rows *rows,
                   const struct attention_params *params);
size_t attention_scratch_bytes_cuda(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim,
                                    uint64_t max_context);

/* recurrent_cuda.c */
int conv_cuda(struct stream *s, struct tensor *y, const struct tensor *x,
              const struct state_view *state, const struct state_rows *rows,
              const struct conv_params *p);
int delta_net_cuda(struct stream *s, struct tensor *y, const struct tensor *qkv,
                   const struct tensor *beta, const struct tensor *dt,
                   const struct state_view *state, const struct state_rows *rows,
                   const struct delta_params *p);
int ssm_cuda(struct stream *s, struct tensor *y, const struct tensor *xbc, const struct tensor *dt,
             const struct state_view *state, const struct state_rows *rows,
             const struct ssm_params *p);

/* stream_scratch.c */
size_t stream_bytes_cuda(const struct op_needs *needs);
int stream_reserve_cuda(struct stream *s, const struct op_needs *needs, struct error *err);

/* sample_cuda.c */
int sample_cuda(struct stream *s, const struct tensor *logits, const struct sample_params *params,
                struct sample_result *results);
