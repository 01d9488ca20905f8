/* decoder.h: runs the steps of one rank. Interprets the architecture's descriptor over packed
 * weights, KV pools and fixed workspaces. Runs on the rank's own thread only. All ranks make the
 * same calls. No allocation in a step. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/load/loader.h"
#include "engine/model/plan.h"
#include "engine/model/step.h"

struct decoder;
struct device;
struct error;
struct op_table;
struct stream;

struct decoder_config {
    const struct model *model;            /* borrowed until destroy, like all pointers here */
    const struct rank_plan *plan;         /* rank.comm and rank.device are set */
    const struct packed_weights *weights; /* packed weights in host memory, */
    struct weight *const *device_weights; /* or on a device: [plan->n_places] */
    struct stream *stream;                /* the stream brings its kernel set */
    bool mix_roles;                       /* as in executor_config */
    bool prompts_f16;                     /* as in struct stream */
    float *logits; /* [n_logits, vocab_size], shared by all ranks; each rank writes its columns */
    /* incremented after each layer; NULL on ranks above the first */
    atomic_uint_fast64_t *progress;
};

/* *out_decoder is owned. INTERNAL if descriptor, weights and plan contradict each other. */
int decoder_create(const struct decoder_config *cfg, struct decoder **out_decoder,
                   struct error *err);
void decoder_destroy(struct decoder *dec);

/* Queues one step. Then cfg.logits holds this rank's columns of the logits of the first n_logits
 * batch->sample_rows. They are valid once the stream is synchronised, by the caller or by the
 * sampler. A stage that is not the first reads its rows from decoder_hidden(). A stage that is not
 * the last leaves them there. */
int decoder_step(struct decoder *dec, const struct step_batch *batch, struct error *err);
/* The same for some rows of a step. The parts of a step are adjacent; the first begins with row 0
 * and brings the inputs of all. The rows of a sequence with states of recurrent layers are in one
 * part. Not for devices that capture steps. A stage that is not the first reads the part's rows of
 * decoder_hidden(). */
int decoder_step_part(struct decoder *dec, const struct step_batch *batch,
                      const struct step_part *part, struct error *err);
/* Queues the computation of n other rows' logits, in place of those in cfg.logits. Rows are sample
 * rows of the last step, from `first` on. n ≤ n_logits; the step was not captured. */
int decoder_logits(struct decoder *dec, uint32_t first, uint32_t n, struct error *err);
/* Queues the inputs of the next step behind the current step, all but the token ids. Does nothing
 * unless steps are captured and the next step will be captured. If the next step's batch says
 * is_ahead, decoder_step() brings only the ids. Otherwise this call has no effect. */
int decoder_step_ahead(struct decoder *dec, const struct step_batch *batch, struct error *err);
/* f32 [n_rows, hidden_dim] on the rank's device. */
float *decoder_hidden(const struct decoder *dec);
/* Copies a block of the layers with blocks for windows, or of all others. */
int decoder_copy_block(struct decoder *dec, bool windows, uint32_t from, uint32_t to,
                       struct error *err);

/* States of recurrent layers. Each call waits until the copy is done. `host` has
 * decoder_state_bytes(). */
int decoder_copy_state(struct decoder *dec, uint32_t from, uint32_t to, struct error *err);
int decoder_save_state(struct decoder *dec, uint32_t slot, void *host, struct error *err);
int decoder_load_state(struct decoder *dec, uint32_t slot, const void *host, struct error *err);

/* Bytes of the KV cache, of the states, and of all other memory, that this decoder holds. */
struct decoder_taken {
    uint64_t kv_bytes, state_bytes, workspace_bytes;
};
void decoder_get_taken(const struct decoder *dec, struct decoder_taken *out_taken);

/* Device memory that captured graphs hold; at most graph_bytes of the plan. */
uint64_t decoder_graphs_taken(const struct decoder *dec);

/* --- the size of a decoder before it is created --- */
/* Most memory of all graphs, on a device that captures steps. */
uint64_t decoder_graphs_bytes(const struct rank_plan *plan);
/* Bytes of a block in the layers with blocks for windows, or in all others. */
uint64_t decoder_block_bytes(const struct rank_plan *plan, const struct model_shape *shape,
                             bool windows);
uint64_t decoder_kv_bytes(const struct rank_plan *plan, const struct model_shape *shape);
/* Bytes of a state slot on this rank, all layers together; 0 without recurrent layers. */
uint64_t decoder_state_bytes(const struct rank_plan *plan, const struct model_shape *shape);
/* Bytes of activations, prepared activations and step inputs. The first rank's include the
 * logits. */
uint64_t decoder_workspace_bytes(const struct rank_plan *plan, const struct model_shape *shape,
                                 const struct op_table *ops);
