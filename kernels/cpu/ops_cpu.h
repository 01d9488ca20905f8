/* ops_cpu.h: the slots of the CPU's op tables, shared by all kernel sets. A slot finds the set's
 * inner loops (inner.h) through the stream's table. No slot allocates. */
#pragma once

#include <stdbool.h>

#include "kernels/cpu/inner.h"
#include "kernels/thread_pool.h"

/* Runs a job on the whole team, or on the calling thread alone if the work is too small to
 * share. */
void ops_run_job(struct stream *s, thread_pool_fn *fn, void *job, bool parallel);

/* Returns the bytes that a thread touches of its STREAM_SCRATCH_BYTES of address space. */
size_t scratch_bytes_cpu(uint32_t vocab_size, uint32_t head_dim);
size_t act_bytes_cpu(uint32_t max_rows, uint32_t max_k);
int act_create_cpu(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                   struct error *err);
void act_destroy_cpu(struct act *act);
int act_prepare_cpu(struct stream *s, struct act *base, const struct tensor *x, uint32_t kinds,
                    const struct segments *segments, struct comm *comm);

int embed_cpu(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w);
int rms_norm_cpu(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                 uint32_t n_w, float eps);
int layer_norm_cpu(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                   const float *b, uint32_t n_w, float eps);
int add_cpu(struct stream *s, struct tensor *y, const struct tensor *x, float factor);
int add_bias_cpu(struct stream *s, struct tensor *y, const float *bias);
int scale_cpu(struct stream *s, struct tensor *x, const uint32_t *positions,
              const struct scale_params *params);
int act_mul_cpu(struct stream *s, struct tensor *y, const struct tensor *gate,
                const struct tensor *up, enum activation kind);
int rope_cpu(struct stream *s, struct tensor *x, const uint32_t *positions,
             const struct rope_params *params);
int kv_write_cpu(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                 const struct tensor *v, const uint32_t *kv_slots);
int gather_rows_cpu(struct stream *s, struct tensor *y, const struct tensor *x,
                    const uint32_t *index);

int copy_heads_cpu(struct stream *s, struct tensor *y, const struct tensor *x, uint32_t n_heads,
                   uint32_t width, uint32_t y_head, uint32_t y_first);

int conv_cpu(struct stream *s, struct tensor *y, const struct tensor *x,
             const struct state_view *state, const struct state_rows *rows,
             const struct conv_params *params);
int delta_net_cpu(struct stream *s, struct tensor *y, const struct tensor *qkv,
                  const struct tensor *beta, const struct tensor *dt,
                  const struct state_view *state, const struct state_rows *rows,
                  const struct delta_params *params);
int ssm_cpu(struct stream *s, struct tensor *y, const struct tensor *xbc, const struct tensor *dt,
            const struct state_view *state, const struct state_rows *rows,
            const struct ssm_params *params);

int linear_cpu(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w);
int linear_parts_cpu(struct stream *s, const struct act *act, const struct linear_part *parts,
                     uint32_t n_parts);
int linear_gated_cpu(struct stream *s, const struct act *act, const struct linear_part *gate,
                     const struct linear_part *up, enum activation kind);
void will_read_cpu(struct stream *s, const struct weight *const *weights, uint32_t n);
int linear_partial_cpu(struct stream *s, struct tensor *partial, struct tensor *high,
                       const struct act *act, const struct weight *w);
int linear_finish_cpu(struct stream *s, struct tensor *y, const struct tensor *partial,
                      const struct act *act, const struct weight *w);

/* In heads_cpu.c. */
int heads_linear_cpu(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                     const struct weight *const *heads, uint32_t n_heads, uint32_t y_head);

/* Scales the sums of rows [row_begin, row_begin + y->n_rows) of act (linear_finish). */
void ops_finish_rows(struct tensor *y, const struct tensor *partial, const struct act *act,
                     uint32_t row_begin, const struct weight *w);

int router_topk_cpu(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                    const struct router_params *params);
int experts_cpu(struct stream *s, struct tensor *y, const struct tensor *x,
                const struct expert_routes *routes, const struct experts *experts,
                const struct expert_work *work, struct comm *comm);

int attention_cpu(struct stream *s, struct tensor *y, const struct tensor *q,
                  const struct kv_layer *kv, const struct attention_rows *rows,
                  const struct attention_params *params);
