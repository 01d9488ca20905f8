/* decoder.h: runs steps of one rank: interprets the architecture's descriptor over packed weights,
 * KV pools and fixed workspaces. One thread (the rank's own); calls of all ranks match. No
 * allocation in a step. */
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
    const struct model *model;            /* all borrowed until destroy */
    const struct rank_plan *plan;         /* rank.comm and rank.device are set */
    const struct packed_weights *weights; /* where they are packed in host memory */
    struct weight *const *device_weights; /* or on a device: [plan->n_places] */
    struct stream *stream;                /* with its kernel set */
    bool mix_roles;                       /* executor_config */
    float *logits; /* [n_logits, vocab_size], shared: each rank writes its columns */
    atomic_uint_fast64_t
        *progress; /* incremented after each layer; NULL on ranks above the first */
};

/* *out_decoder is owned. INTERNAL where descriptor, weights and plan do not fit together. */
int decoder_create(const struct decoder_config *cfg, struct decoder **out_decoder,
                   struct error *err);
void decoder_destroy(struct decoder *dec);

/* Queues one step; this rank's columns of the logits of the first n_logits of batch->sample_rows
 * stand in cfg.logits when the stream is synchronised, which may be left to who samples. Of a stage
 * that is not the first the rows stand in decoder_hidden() already, and of one that is not the last
 * they do afterwards.
 */
int decoder_step(struct decoder *dec, const struct step_batch *batch, struct error *err);
/* Queues the same of n others of these rows, from `first` on, in place of those: n_logits at most,
 * of the last step, which was not captured. */
int decoder_logits(struct decoder *dec, uint32_t first, uint32_t n, struct error *err);
/* Queues what the next step reads, all but its token ids, behind the step under way, where steps
 * are captured and this one will be. The next decoder_step() brings the ids alone if its batch says
 * is_ahead; else it is as if this had not been called. */
int decoder_step_ahead(struct decoder *dec, const struct step_batch *batch, struct error *err);
/* f32 [n_rows, hidden_dim] on the rank's device. */
float *decoder_hidden(const struct decoder *dec);
int decoder_copy_block(struct decoder *dec, uint32_t from, uint32_t to, struct error *err);

/* Bytes of KV cache, and of all else, that this decoder holds. */
void decoder_get_taken(const struct decoder *dec, uint64_t *out_kv_bytes,
                       uint64_t *out_workspace_bytes);

/* Device memory of the graphs that are captured: graph_bytes of the plan at most. */
uint64_t decoder_graphs_taken(const struct decoder *dec);

/* What a decoder would take: */
/* Of a device that captures steps: for all graphs there may be at once. */
uint64_t decoder_graphs_bytes(const struct rank_plan *plan);
uint64_t decoder_kv_bytes(const struct rank_plan *plan, const struct model_shape *shape);
/* Activations, prepared activations and step inputs; the first rank's logits included. */
uint64_t decoder_workspace_bytes(const struct rank_plan *plan, const struct model_shape *shape,
                                 const struct op_table *ops);
