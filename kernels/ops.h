/* ops.h: the maths of a transformer step as a table of functions, a table per backend and kernel
 * set. Callers use the op_x() wrappers below, which check shapes. A mismatch is INTERNAL: an error
 * in the calling code, never in a user's request.
 *
 * All activations are f32 [n_rows, n_cols]. A row's result depends on that row alone, never on
 * n_rows, threads or the grouping of rows. This is the numerics contract (docs/house/numerics.md).
 * Ops are stream-ordered; an op of the CPU is done when it returns. The oracle is kernels/cpu/ref,
 * which computes every plain op. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/experts.h"
#include "kernels/maths.h"
#include "kernels/recurrent.h"
#include "kernels/sample.h"
#include "kernels/tensor.h"
#include "kernels/weight.h"

struct act;
struct comm;
struct device;
struct error;
struct stream;

enum act_kind {
    ACT_F32 = 1,  /* unchanged f32 rows (dense weights) */
    ACT_BF16 = 4, /* rounded to bf16 (BF16 weights on a GPU, and on the CPU with vdpbf16ps) */
    ACT_F16 = 16, /* rounded to f16 (F16 weights on a GPU) */
    ACT_F8 = 8,   /* E4M3 with a scale per token (WEIGHT_STORE_F8) */
    ACT_INT8 = 2, /* integers with a scale per token and a sparse outlier plane (block integers,
                     docs/house/numerics.md): every quantized weight */
};

struct norm_params {
    bool is_centred;       /* true: layer norm; false: RMS norm */
    const float *w, *bias; /* bias: layer norm only, NULL: none */
    float eps;
};

/* The factors of a row, and the limit of the products. */
struct scale_params {
    float factor;
    float softcap; /* x = softcap · tanh(x / softcap) after all factors; 0: off */
    /* Row r is also multiplied by by_position[(positions[r] + offset) / period], on the device.
     * NULL: off */
    const float *by_position;
    uint32_t period, offset;
    const struct tensor *gate; /* f32 [m, 1]: row r is also multiplied by σ(gate[r]). NULL: off */
};

enum rope_style {
    ROPE_NONE,
    ROPE_INTERLEAVED, /* pairs (2i, 2i+1): GGUF's permuted llama */
    ROPE_HALF,        /* pairs (i, i + n/2): Hugging Face, NeoX */
};

struct rope_params {
    enum rope_style style;
    uint32_t head_dim, n_rot; /* n_rot ≤ head_dim, even */
    const float *inv_freq;    /* [n_rot/2], on the device; includes the frequency scaling */
    float attention_factor;   /* multiplies cos and sin (YaRN, longrope), 1 otherwise */
    /* With several tables of frequencies, inv_freq is [n_tables][n_rot/2]. Row r of the op is
     * rotated by table row_tables[r]; row_tables is on the device. NULL: there is a single table.
     */
    const uint32_t *row_tables;
};

/* The paged K and V of a layer on this rank: [n_blocks][n_kv_heads][block_size] vectors. A vector
 * of K has head_dim elements, and a vector of V has v_dim. Each vector has ops_kv_vector_bytes().
 * The order within a block and head belongs to the backend (CPU: cpu/attention/kv_layout.h). Only
 * op_kv_write and op_attention depend on that order; other code copies whole blocks. */
struct kv_layer {
    void *k;
    void *v; /* NULL: a vector of V is the first v_dim elements of the vector of K (latent cache) */
    enum dtype dtype; /* a type in the op table's kv_dtypes */
    uint32_t n_blocks, block_size, n_kv_heads, head_dim, v_dim;
};

/* Returns the bytes of a head's K (or V) of `dim` elements at one position. I8 and F8_E4M3 include
 * a scale per vector. 0 for types that a cache cannot have, and for no elements. */
size_t ops_kv_vector_bytes(enum dtype type, uint32_t dim);

/* Rows of a ragged batch: row r belongs to sequence seq_of_row[r] at position positions[r] and
 * attends to 0..positions[r] of the sequence. Rows of one sequence are adjacent and ascending.
 * Position p lies in block block_tables[seq·table_stride + p/block_size] at p % block_size. */
struct attention_rows {
    const uint32_t *positions;  /* [n_rows] */
    const uint32_t *seq_of_row; /* [n_rows] */
    const uint32_t
        *kv_slots; /* [n_rows] block · block_size + offset: the place of this row's K and V */
    const uint32_t *block_tables;
    uint32_t table_stride;
    uint32_t n_rows, n_seqs;
    /* Upper bound (exclusive) of all positions. Callers may round it up, so that a captured step
     * serves many values. 0: the capacity of table_stride. Results do not depend on it. */
    uint32_t max_positions;
};

struct attention_params {
    uint32_t n_heads; /* query heads of this rank */
    uint32_t head_begin,
        kv_begin; /* global indices of the rank's first query head and first held KV head */
    uint32_t heads_per_kv; /* query head h (global) reads KV head h / heads_per_kv */
    float scale;           /* usually 1/√head_dim */
    uint32_t window;       /* sliding window in positions, 0 = all */
    uint32_t chunk;        /* a row attends only to its own chunk of so many positions, 0 = all */
    float softcap;         /* 0 = off */
    /* ALiBi slopes of this rank's query heads, [n_heads] on the device (arXiv 2108.12409). A head's
     * score is reduced by its slope per position between query and key. NULL: no ALiBi. */
    const float *slopes;
    /* A logit per query head of this rank, [n_heads] on the device. The denominator of
     * the head's softmax gets e^logit more; the sum of values gets nothing. NULL: no sinks. */
    const float *sinks;
};

/* The first position that a row at `position` attends to. */
static inline uint32_t attention_first(uint32_t position, uint32_t window, uint32_t chunk)
{
    uint32_t first = window > 0 && position >= window ? position + 1 - window : 0;
    uint32_t start = chunk > 0 ? position - position % chunk : 0;
    return first > start ? first : start;
}

/* A linear among several that read the same prepared activations. */
struct linear_part {
    struct tensor *y; /* = x · Wᵀ + bias */
    const struct weight *w;
    const float *bias;  /* [n], NULL: none */
    struct tensor *sum; /* if not NULL: sum += y, and y is scratch */
    float sum_factor;   /* if not 0: sum += sum_factor · y, where the product is rounded first */
};

enum { LINEAR_MAX_PARTS = 3 };

/* Limits of the largest step that a stream will run. */
struct op_needs {
    uint32_t max_rows, max_logits;
    bool has_dense;        /* some linears have 16-bit weights */
    uint32_t max_row_n;    /* outputs of row-split linears */
    uint32_t max_n, max_k; /* limits over all linears but the head */
    /* The largest quantized linear but the head, if prompts_f16 of the stream will be set; else 0
     */
    uint32_t widened_n, widened_k;
    uint32_t vocab_size;                    /* rows of this rank's head */
    uint32_t n_heads, n_kv_heads, head_dim; /* head_dim: the widest K or V of a head */
    uint32_t max_positions;                 /* length of the longest sequence */
};

struct op_table {
    const char *name; /* "f32", "ref", "avx2", "avx512", "avx512_bf16", "amx", "cuda" */
    const char
        *numerics; /* name of the arithmetic: equal names give equal bits (part of numerics_id) */
    uint32_t kv_dtypes; /* bits 1 << enum dtype: cache types that kv_write and attention accept */
    bool kv_v_in_k;     /* kv_write and attention accept kv_layer.v NULL */
    bool has_expert_scale; /* router_topk reads router_params.expert_scale */
    size_t (*weight_bytes)(const struct weight_desc *desc, struct error *err);
    int (*weight_init)(const struct weight_desc *desc, void *memory, struct error *err);
    int (*weight_pack_rows)(struct weight *weight, uint32_t row_begin, uint32_t n_rows,
                            const void *raw, struct error *err);

    /* Weights in device memory. Optional, all or none: default NULL = ops read the packed memory
     * itself (CPU). A CPU set uses weight_bytes to weight_pack_rows above; a set with device
     * weights leaves those NULL. A weight takes weight_device_bytes() of the device's memory
     * (256-byte aligned; 0 with err set as weight_bytes()). Slices are packed in host memory of
     * weight_slice_bytes() (64-byte aligned). The `copies` then go from the slice to the device.
     * Ops read the weight through a small header in host memory. Rows as in weight_pack_rows(); any
     * thread. */
    size_t (*weight_device_bytes)(const struct weight_desc *desc, struct error *err);
    size_t (*weight_slice_bytes)(const struct weight_desc *desc, uint32_t n_rows);
    int (*weight_pack_slice)(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                             const void *raw, void *slice,
                             struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                             struct error *err);
    /* *out_weight is owned; `data` (device memory) is borrowed for its life. weight_vector()
     * returns a device address. */
    int (*weight_bind)(const struct weight_desc *desc, void *data, struct weight **out_weight,
                       struct error *err);
    void (*weight_unbind)(struct weight *weight);

    /* Device bytes that act_create() takes. No state; any thread. */
    size_t (*act_bytes)(uint32_t max_rows, uint32_t max_k);
    /* Makes scratch for prepared activations of up to max_rows × max_k. Owned; freed by
     * act_destroy. */
    int (*act_create)(struct device *device, uint32_t max_rows, uint32_t max_k,
                      struct act **out_act, struct error *err);
    void (*act_destroy)(struct act *act);

    /* Bytes that each thread of a stream uses at most in ops of these shapes, beyond allocations
     * through the device. No state; any thread. Optional: default NULL = none. */
    size_t (*scratch_bytes)(uint32_t vocab_size, uint32_t head_dim);
    /* Device memory in which the ops of a stream work, for steps within `needs`. Reserved once, so
     * that no step allocates. Optional, both or none: default NULL = none. */
    size_t (*stream_bytes)(const struct op_needs *needs);
    int (*stream_reserve)(struct stream *s, const struct op_needs *needs, struct error *err);

    /* y[m, dim] = row ids[r] of w, an embedding or a LINEAR_COLUMN weight (a tied LM head). `ids`
     * is device memory. Bytes: m rows of w + 4·m·dim. */
    int (*embed)(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w);
    /* y = x / rms(x) · w; f32, 16 lanes then a fixed tree. arXiv 1910.07467, eq. 4. y may be x.
     * w has n_w ≥ 1 rows; row r of x takes row r % n_w of w. */
    int (*rms_norm)(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                    uint32_t n_w, float eps);
    /* y = (x − mean)/√(var + eps) · w + b (b may be NULL). y may be x. The rows of w and b as in
     * rms_norm. */
    int (*layer_norm)(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                      const float *b, uint32_t n_w, float eps);
    /* y += factor · x, where the product is rounded first; x is scratch if factor is not 1. */
    int (*add)(struct stream *s, struct tensor *y, const struct tensor *x, float factor);
    /* y += bias broadcast over rows. */
    int (*add_bias)(struct stream *s, struct tensor *y, const float *bias);
    /* Scales the rows of x in place. `positions` [m] on the device, unused without by_position. */
    int (*scale)(struct stream *s, struct tensor *x, const uint32_t *positions,
                 const struct scale_params *params);
    /* y = activation(gate) · up (up NULL: activation alone). y may be gate. */
    int (*act_mul)(struct stream *s, struct tensor *y, const struct tensor *gate,
                   const struct tensor *up, enum activation kind);

    /* Prepares x for the linears that read it: `kinds` = bits of enum act_kind. `segments` (NULL: x
     * is the whole row) gives the columns of the whole K that x holds. With comm size > 1 the
     * per-token mean and maximum are reduced over ranks. The tensor x stays borrowed until the last
     * linear that reads `act`. */
    int (*act_prepare)(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                       const struct segments *segments, struct comm *comm);
    /* y[m, n] = the norm of x (layer_norm if p->is_centred, else rms_norm; y may be x).
     * Then act_prepare of y, whole on each rank. y is scratch: the backend may leave y unwritten.
     * Optional: default NULL = these ops one after the other, with equal bits. */
    int (*norm_prepare)(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                        const struct norm_params *p, uint32_t kinds);
    /* y[m, n] = x · Wᵀ from prepared activations. For LINEAR_ROW only at tp 1, with the 8-segment
     * tree inside if sums are floats. */
    int (*linear)(struct stream *s, struct tensor *y, const struct act *act,
                  const struct weight *w);
    /* Computes several linears as one piece of work. Results equal those of `linear`, `add_bias`
     * and `add` in turn, for each part. Optional: default NULL = these ops. */
    int (*linear_parts)(struct stream *s, const struct act *act, const struct linear_part *parts,
                        uint32_t n_parts);
    /* gate.y = activation(gate.y) · up.y after both linears and their biases; `sum` is
     * NULL. Optional: default NULL = `linear_parts` and `act_mul`. */
    int (*linear_gated)(struct stream *s, const struct act *act, const struct linear_part *gate,
                        const struct linear_part *up, enum activation kind);
    /* Does linear_gated, then act_prepare of gate.y with the other arguments. gate.y and up.y are
     * scratch: the backend may leave them unwritten. Optional: default NULL = these ops one after
     * the other, with equal bits. */
    int (*gated_prepare)(struct stream *s, struct act *act, const struct linear_part *gate,
                         const struct linear_part *up, enum activation kind, uint32_t kinds,
                         const struct segments *segments, struct comm *comm);
    /* Announces the weights of the linears after the next one, n ≤ LINEAR_MAX_PARTS: waiting
     * threads may prefetch them. Optional: default NULL = nothing. */
    void (*will_read)(struct stream *s, const struct weight *const *weights, uint32_t n);
    /* LINEAR_ROW at tp > 1: writes this rank's partial sums into `partial` (integer weights: exact
     * i32; f32: its subtree). Weights of two planes (weight_header.h) have sums T beyond 32 bits:
     * `partial` gets T & 0xffff and `high`, an i32 view of y, gets T >> 16. */
    int (*linear_partial)(struct stream *s, struct tensor *partial, struct tensor *high,
                          const struct act *act, const struct weight *w);
    /* After the sum over ranks: scales `partial` into y, which still holds `high`. */
    int (*linear_finish)(struct stream *s, struct tensor *y, const struct tensor *partial,
                         const struct act *act, const struct weight *w);

    /* Chooses the experts of each row of logits[m, n_experts] and orders the pairs (experts.h).
     * Sums over experts: 16 lanes, then a fixed tree; sums over the chosen: a chain in ascending
     * id. */
    int (*router_topk)(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                       const struct router_params *params);
    /* y[m, hidden] = Σ weight · (down · act(gate · x, up · x) + bias) over the chosen experts of a
     * row, a chain of FMAs in ascending id from 0. A step reads the weights of chosen experts only.
     * At comm size > 1 the products of `down` are summed over ranks as in op_linear_row(), per
     * pair. y must not be x. */
    int (*experts)(struct stream *s, struct tensor *y, const struct tensor *x,
                   const struct expert_routes *routes, const struct experts *experts,
                   const struct expert_work *work, struct comm *comm);
    /* Checks that the op `experts` can read the weights of *experts. Fills the fields that the
     * backend derives from the weights. Optional: default NULL = nothing. */
    int (*experts_bind)(struct experts *experts, struct error *err);

    /* In place on x[m, n_heads·head_dim]. */
    int (*rope)(struct stream *s, struct tensor *x, const uint32_t *positions,
                const struct rope_params *params);
    /* Stores k [m, n_kv_heads·head_dim] and v [m, n_kv_heads·v_dim] at kv_slots. v is NULL if and
     * only if kv->v is NULL. */
    int (*kv_write)(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                    const struct tensor *v, const uint32_t *kv_slots);
    /* Does rope of q and of k, in place, and kv_write of k and v. Optional: default NULL = these
     * ops one after the other, with equal bits. */
    int (*rope_kv)(struct stream *s, struct tensor *q, struct tensor *k, const struct tensor *v,
                   const uint32_t *positions, const struct rope_params *params,
                   const struct kv_layer *kv, const uint32_t *kv_slots);
    /* y[m, n_heads·v_dim] from q[m, n_heads·head_dim]; partitions of 128 positions aligned to 0,
     * combined in index order. Latent caches on CUDA: 32 positions in place of 128. */
    int (*attention)(struct stream *s, struct tensor *y, const struct tensor *q,
                     const struct kv_layer *kv, const struct attention_rows *rows,
                     const struct attention_params *params);

    /* Causal convolution per column of x[m, n_cols]: a chain of FMAs from the bias, oldest input
     * first. y may be x. Bytes: 8·m·n_cols and the states. */
    int (*conv)(struct stream *s, struct tensor *y, const struct tensor *x,
                const struct state_view *state, const struct state_rows *rows,
                const struct conv_params *params);
    /* Gated delta net: y[m, n_heads·head_dim] from qkv[m, q | k | v], beta[m, n_heads] and
     * dt[m, n_heads], the latter two before their activations. Per head:
     *   q, k = x / √(Σx² + norm_eps), q · scale;  g = exp(a · softplus(dt + dt_bias))
     *   d = σ(beta) · (v − g·(kᵀS));  S = g·S + k⊗d;  y = qᵀS
     * Each sum over key_dim is an ascending chain of FMAs from 0. qkv is scratch. */
    int (*delta_net)(struct stream *s, struct tensor *y, const struct tensor *qkv,
                     const struct tensor *beta, const struct tensor *dt,
                     const struct state_view *state, const struct state_rows *rows,
                     const struct delta_params *params);
    /* Mamba-2: y[m, n_heads·head_dim] from xbc[m, x | B | C] and dt[m, n_heads], before its
     * activation. Per head, with t = softplus(dt + dt_bias):
     *   S = exp(t·a)·S + B⊗(t·x);  y = d·x + CᵀS
     * The sum over state_dim is an ascending chain of FMAs from 0; then d·x by an FMA. */
    int (*ssm)(struct stream *s, struct tensor *y, const struct tensor *xbc,
               const struct tensor *dt, const struct state_view *state,
               const struct state_rows *rows, const struct ssm_params *params);
    /* Head h: y columns [h · y_head + y_first, … + width) = x columns [h · width, … + width). */
    int (*copy_heads)(struct stream *s, struct tensor *y, const struct tensor *x, uint32_t n_heads,
                      uint32_t width, uint32_t y_head, uint32_t y_first);

    /* A linear per head: y columns [h·y_head, … + n) = x columns [h·k, … + k) · W_hᵀ, with weights
     * of equal shape [n, k]. `act` is scratch for rows of k columns. Optional: default NULL =
     * act_prepare and linear for each head, with equal bits. CUDA computes rows of prompts as
     * generated rows. */
    int (*heads_linear)(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                        const struct weight *const *heads, uint32_t n_heads, uint32_t y_head);

    /* Selects rows: y[i] = x[index[i]]. */
    int (*gather_rows)(struct stream *s, struct tensor *y, const struct tensor *x,
                       const uint32_t *index);
    /* Samples a token per row of logits[n, vocab] (sample.h). params and results are host memory;
     * results are ready after a sync of the stream. The logits stay unchanged. */
    int (*sample)(struct stream *s, const struct tensor *logits, const struct sample_params *params,
                  struct sample_result *results);
};

/* Chooses a kernel set of the CPU backend: "auto" (best by CPUID), "ref", "avx2", "avx512",
 * "avx512_bf16", "amx" or "f32". The set "avx512_bf16" multiplies BF16 weights by vdpbf16ps. The
 * set "f32" has dequantized weights and f32 activations; the accuracy of other sets is measured
 * against it. NOT_FOUND for an unknown name, FAILED_PRECONDITION if the CPU lacks the instructions.
 */
int op_table_cpu(const char *name, const struct op_table **out_ops, struct error *err);

/* Returns the reason why the set "amx" is not available; empty if it is. */
const char *ops_why_no_amx(void);

/* Wrappers with shape checks; int results as above. */
int op_embed(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w);
int op_rms_norm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                float eps);
int op_layer_norm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                  const float *b, float eps);
/* Norms each head of x[m, n_heads · dim] in place, by p->w[n_heads][dim] and p->bias. The rows of x
 * must be adjacent. */
int op_norm_heads(struct stream *s, const struct tensor *x, uint32_t n_heads,
                  const struct norm_params *p);
int op_add(struct stream *s, struct tensor *y, const struct tensor *x);
int op_add_scaled(struct stream *s, struct tensor *y, const struct tensor *x, float factor);
int op_add_bias(struct stream *s, struct tensor *y, const float *bias);
int op_scale(struct stream *s, struct tensor *x, const uint32_t *positions,
             const struct scale_params *params);
int op_act_mul(struct stream *s, struct tensor *y, const struct tensor *gate,
               const struct tensor *up, enum activation kind);
int op_act_prepare(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                   const struct segments *segments, struct comm *comm);
int op_norm_prepare(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                    const struct norm_params *p, uint32_t kinds);
int op_linear(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w);
int op_linear_parts(struct stream *s, const struct act *act, const struct linear_part *parts,
                    uint32_t n_parts);
int op_linear_gated(struct stream *s, const struct act *act, const struct linear_part *gate,
                    const struct linear_part *up, enum activation kind);
int op_gated_prepare(struct stream *s, struct act *act, const struct linear_part *gate,
                     const struct linear_part *up, enum activation kind, uint32_t kinds,
                     const struct segments *segments, struct comm *comm);
void op_will_read(struct stream *s, const struct weight *const *weights, uint32_t n);
/* Computes the whole row-parallel linear: at comm size 1 op_linear, else partial → all-reduce →
 * finish. `partial` is scratch [m, n] of 4-byte elements; y must not alias it. */
int op_linear_row(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w,
                  struct tensor *partial, struct comm *comm);
int op_router_topk(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                   const struct router_params *params);
int op_experts(struct stream *s, struct tensor *y, const struct tensor *x,
               const struct expert_routes *routes, const struct experts *experts,
               const struct expert_work *work, struct comm *comm);
/* Must precede op_experts(), once the weights are bound. */
int op_experts_bind(const struct op_table *ops, struct experts *experts, struct error *err);
int op_rope(struct stream *s, struct tensor *x, const uint32_t *positions,
            const struct rope_params *params);
int op_kv_write(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                const struct tensor *v, const uint32_t *kv_slots);
int op_rope_kv(struct stream *s, struct tensor *q, struct tensor *k, const struct tensor *v,
               const uint32_t *positions, const struct rope_params *params,
               const struct kv_layer *kv, const uint32_t *kv_slots);
int op_attention(struct stream *s, struct tensor *y, const struct tensor *q,
                 const struct kv_layer *kv, const struct attention_rows *rows,
                 const struct attention_params *params);
/* The ops of recurrent.h and op_copy_heads() are UNIMPLEMENTED if the table lacks them. */
int op_conv(struct stream *s, struct tensor *y, const struct tensor *x,
            const struct state_view *state, const struct state_rows *rows,
            const struct conv_params *params);
int op_delta_net(struct stream *s, struct tensor *y, const struct tensor *qkv,
                 const struct tensor *beta, const struct tensor *dt, const struct state_view *state,
                 const struct state_rows *rows, const struct delta_params *params);
int op_ssm(struct stream *s, struct tensor *y, const struct tensor *xbc, const struct tensor *dt,
           const struct state_view *state, const struct state_rows *rows,
           const struct ssm_params *params);
int op_copy_heads(struct stream *s, struct tensor *y, const struct tensor *x, uint32_t n_heads,
                  uint32_t width, uint32_t y_head, uint32_t y_first);
int op_heads_linear(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                    const struct weight *const *heads, uint32_t n_heads, uint32_t y_head);
/* The slot's default: act_prepare and linear for each head. Arguments are not checked. */
int op_heads_in_turn(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                     const struct weight *const *heads, uint32_t n_heads, uint32_t y_head);
int op_gather_rows(struct stream *s, struct tensor *y, const struct tensor *x,
                   const uint32_t *index);
int op_sample(struct stream *s, const struct tensor *logits, const struct sample_params *params,
              struct sample_result *results);
