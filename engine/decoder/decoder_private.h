/* decoder_private.h: the decoder's state, shared by the files of this room alone. A section below
 * names its file. */
#pragma once

#include <stdbool.h>

#include "engine/decoder/decoder.h"
#include "engine/decoder/decoder_memory.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* A layer's weights; NULL for tensors that the model does not have. Vectors are f32 with the rank's
 * length. */
struct layer {
    const struct model_layer *facts; /* NULL for the tensors that are not per layer */
    const struct layer_split *split;
    const struct weight *linear[N_ARCH_SLOTS];
    const float *vector[N_ARCH_SLOTS];
    struct kv_layer kv;                         /* of facts->kv_source */
    bool is_windowed;                           /* kv has blocks for windows */
    struct state_view states[N_DECODER_STATES]; /* recurrent layers only */
    struct attention_params attention;
    const struct rope_params *rope;
    /* Activation formats that the linears read which take the mixer's input, and the FFN's. */
    uint32_t mixer_kinds, ffn_kinds;
    struct layer_experts *experts; /* owned; NULL without experts */
    float out_scale;               /* multiplies the layer's output; 1: none */
    /* Latent attention: [2][heads of the rank]: up projections of keys, then of values. Owned; NULL
     * without. */
    const struct weight **heads;
};

/* The experts of a layer: what the ops read, and the weights by expert. */
struct layer_experts {
    struct experts weights;
    struct router_params router;
    const struct weight *by_expert[]; /* [3][n]: gate, up, down */
};

/* Memory for the experts of one layer at a time. */
struct decoder_experts {
    struct expert_routes routes;
    struct expert_work work; /* work.act is owned; NULL without experts */
};

/* A step's inputs in host memory, in the layout of the device. */
struct decoder_inputs {
    unsigned char *mirror; /* NULL: batches are uploaded without a mirror */
    size_t n_bytes;
    struct event *uploaded; /* after this event the mirror may be written again */
    struct role_run *roles; /* [max_rows] */
    uint32_t n_roles;
};

/* Bucket of captured steps. */
struct decoder_graph_key {
    uint32_t n_rows, max_positions;
};

struct decoder {
    struct decoder_config cfg;
    const struct arch *arch;
    const struct model_shape *shape;
    struct rank_split split;
    struct stream *stream;
    struct comm *comm;
    struct layer *layers;
    struct layer globals; /* tensors that are not per layer */
    unsigned char *kv_memory, *state_memory, *memory;
    uint64_t kv_bytes, state_bytes, memory_bytes;
    uint64_t state_slot_bytes;
    struct decoder_memory mem;
    struct act *act;
    struct rope_params ropes[ARCH_MAX_ROPES];
    struct rope_params no_rope;
    struct scale_params temperature; /* scales queries; by_position NULL: not at all */
    struct decoder_experts experts;
    struct decoder_inputs inputs;
    uint32_t n_rows;               /* rows of the last step */
    uint32_t row_begin;            /* first row of the part of the step that is queued now */
    struct decoder_graphs *graphs; /* NULL: steps run op by op */
    bool has_ahead; /* the inputs of a step of bucket `ahead` are queued, without ids */
    struct decoder_graph_key ahead;
};

/* decoder_inputs.c: copies a batch to the fixed addresses that the ops read. */

/* Creates the mirror if the device has memory of its own; see decoder_inputs.c. */
int decoder_inputs_init(struct decoder *dec, struct error *err);
void decoder_inputs_fini(struct decoder *dec);
/* Pads rows from batch->n_rows to n_rows (at most max_rows), and sample rows to n_sample_rows.
 * Padding rows have token 0 at position 0 and write no K and V. */
int decoder_inputs_upload(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows,
                          uint32_t n_sample_rows);
/* The same upload in two calls: all but the token ids, then the ids. Needs a mirror, and every row
 * must be a sample row. */
int decoder_inputs_ahead(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows);
int decoder_inputs_ids(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows);

/* decoder_graphs.c: captured steps, by buckets of rows and of context. */

int decoder_graphs_create(struct decoder *dec, struct error *err);
void decoder_graphs_destroy(struct decoder *dec);
/* Finds the bucket of this batch. Returns false if the batch runs op by op. */
bool decoder_graphs_key(const struct decoder *dec, const struct step_batch *batch,
                        struct decoder_graph_key *out_key);
/* Replays or captures the step. dec's inputs are uploaded already. */
int decoder_graphs_run(struct decoder *dec, const struct decoder_graph_key *key, struct error *err);

/* decoder.c: queues all ops of a step over uploaded inputs. */
int decoder_queue_step(struct decoder *dec, uint32_t n_rows, uint32_t n_sample_rows,
                       uint32_t n_seqs, uint32_t max_positions);

/* decoder_embed.c: embeddings of tokens, and per-layer inputs. */

/* Reads the factors of layers' outputs (ARCH_LAYER_SCALE) from the device. */
int decoder_embed_open(struct decoder *dec, struct error *err);
/* x[m, hidden] = embeddings of the step's tokens; fills the per-layer inputs, if there are any. */
int decoder_embed_rows(struct decoder *dec, struct tensor *x);
/* Ends a layer: adds what follows from its per-layer input, and multiplies by its factor. Does
 * nothing for other models. */
int decoder_embed_end(struct decoder *dec, const struct layer *at, struct tensor *x);

/* decoder_linear.c: linears of a layer. */

/* Weights that are read soon: those of n ≤ LINEAR_MAX_PARTS slots that the layer has. */
struct decoder_soon {
    const struct layer *layer;
    const enum arch_slot *slots;
    uint32_t n;
};

void decoder_will_read(struct decoder *dec, const struct decoder_soon *soon);
/* The weights that an FFN reads first. The experts themselves are announced once they are
 * chosen. */
struct decoder_soon decoder_soon_ffn(const struct layer *at);
/* The mixer's output matrix. */
struct decoder_soon decoder_soon_out(const struct layer *at);
/* The weights that the next layer, or the head, reads first. */
struct decoder_soon decoder_soon_next(const struct decoder *dec, const struct layer *next);

/* y = W·act + bias, for a weight that is split by outputs or not split. */
struct linear_part decoder_part(const struct layer *at, enum arch_slot weight, struct tensor *y);
/* Prepares `from` for a weight that is split by inputs. */
int decoder_row_prepare(struct decoder *dec, const struct linear_part *what,
                        const struct segments *segments, const struct tensor *from);
/* Ends a branch of the layer: y = W·act + bias. Then y is normed, if the model has such a norm, and
 * added to `sum` (NULL: y is the result). */
int decoder_end_branch(struct decoder *dec, const struct layer *at, struct linear_part what,
                       enum arch_slot post_norm, struct tensor *sum);

/* decoder_attention.c: attention over a paged cache. */

/* False for a layer that reads the K and V of another. */
bool decoder_has_own_kv(const struct decoder *dec, const struct layer *at);

/* Queries, keys and values of a step's rows; `gate` if the layer has one. */
struct decoder_projections {
    struct tensor q, k, v, gate;
};

/* Computes them from the layer's normed and prepared input. */
int decoder_project_rows(struct decoder *dec, const struct layer *at, uint32_t m,
                         struct decoder_projections *out);
/* out[m, hidden] = attention over the projections; added to `sum`. `then`: the weights that are
 * read after those of attention. */
int decoder_attend(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                   struct decoder_projections *in, const struct decoder_soon *then,
                   struct tensor *out, struct tensor *sum);

/* decoder_latent.c: latent attention. */

/* Makes at->heads of the layers with latent attention, before weights are bound. */
int decoder_latent_open(struct decoder *dec, struct error *err);
void decoder_latent_close(struct decoder *dec);
/* Binds the weight of a head, in slot ARCH_LATENT_K_UP or ARCH_LATENT_V_UP. `head` counts all heads
 * of the model. */
void decoder_latent_bind(struct layer *at, enum arch_slot slot, uint32_t head,
                         const struct weight *weight);
/* out[m, hidden] = latent attention over norm(x); added to `sum`. */
int decoder_run_latent(struct decoder *dec, const struct layer *at,
                       const struct attention_rows *rows, const struct tensor *x,
                       struct tensor *out, struct tensor *sum);

/* decoder_recurrent.c: mixers with a state. */

/* The projections of a step's rows. q, k and v are columns of `inputs`. Mamba-2 has no beta. A
 * short convolution has v and gate, and the gate of its input in `beta`. */
struct decoder_recurrence {
    struct tensor inputs, q, k, v, gate, dt, beta;
};

/* Computes them from the layer's normed and prepared input. */
int decoder_project_state(struct decoder *dec, const struct layer *at, uint32_t m,
                          struct decoder_recurrence *out);
/* out[m, hidden] = the mixer over the projections, which are scratch; added to `sum`. `then`: the
 * weights that are read after those of the mixer. */
int decoder_run_state(struct decoder *dec, const struct layer *at, struct decoder_recurrence *in,
                      const struct decoder_soon *then, struct tensor *out, struct tensor *sum);

/* decoder_layer.c: queues a layer. `next`: the layer that is read afterwards, NULL for the last. */
int decoder_run_layer(struct decoder *dec, const struct layer *at, const struct layer *next,
                      const struct attention_rows *rows, struct tensor *x);
/* h = norm(x) by the weight of slot `norm`, prepared for the linears that read it. Without the
 * weight, x itself is prepared. The slot after `norm` is its bias. */
int decoder_norm_prepare(struct decoder *dec, const struct layer *at, enum arch_slot norm,
                         struct tensor *h, const struct tensor *x, uint32_t kinds);
/* y = norm(x); y may be x. */
int decoder_norm(struct decoder *dec, const struct layer *at, enum arch_slot norm, struct tensor *y,
                 const struct tensor *x);

/* x *= factor; no op for 1. */
int decoder_scale(struct decoder *dec, struct tensor *x, float factor);

/* sum += W·act + bias, for a weight that is split by inputs. The bias is added once, after the sum
 * over ranks. `y` is scratch, or the result if `sum` is NULL. */
int decoder_linear_row(struct decoder *dec, const struct linear_part *what);
/* Finds the weights that the layer `next` reads first; NULL: those that the head reads. Returns
 * their number. */
uint32_t decoder_reads_next(const struct decoder *dec, const struct layer *next,
                            const struct weight *out[LINEAR_MAX_PARTS]);
/* Norms and scales a branch of the layer, if the model does, and adds it to `sum` (NULL: y is the
 * result). */
int decoder_add_branch(struct decoder *dec, const struct layer *at, struct tensor *y,
                       enum arch_slot post_norm, struct tensor *sum);

/* decoder_experts.c: the FFN of a layer with experts. */

/* Makes at->experts of the layers that have experts, before weights are bound. */
int decoder_experts_open(struct decoder *dec, struct error *err);
/* Fills them from the bound weights, and makes the memory that their ops use. */
int decoder_experts_start(struct decoder *dec, struct error *err);
void decoder_experts_close(struct decoder *dec);
/* sum += post_norm(experts(norm(x))); `out` is scratch, or the result if sum is NULL. `next` as in
 * decoder_run_layer(). */
int decoder_run_experts(struct decoder *dec, const struct layer *at, const struct layer *next,
                        enum arch_slot norm, enum arch_slot post_norm, const struct tensor *x,
                        struct tensor *out, struct tensor *sum);

/* out[m, hidden] = mixer over norm(x); added to `sum` (NULL: out is the result). */
int decoder_run_mixer(struct decoder *dec, const struct layer *at,
                      const struct attention_rows *rows, const struct tensor *x, struct tensor *out,
                      struct tensor *sum);

/* decoder_state.c: memory for the states of recurrent layers; none without such layers. */
int decoder_state_open(struct decoder *dec, struct error *err);
void decoder_state_close(struct decoder *dec);

/* decoder_use.c: checks that every weight has a use, and the shape that this use needs. */
int decoder_check_uses(const struct decoder *dec, struct error *err);
