/* decoder_private.h: the decoder's state, shared by decoder.c (steps), decoder_open.c (creation),
 * decoder_inputs.c (what a step reads) and decoder_graphs.c (captured steps) alone. */
#pragma once

#include <stdbool.h>

#include "engine/forward/decoder.h"
#include "engine/forward/decoder_memory.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* A layer's weights; NULL where the model has none. Vectors are f32 of the rank's length. */
struct layer {
    const struct weight *linear[N_ARCH_SLOTS];
    const float *vector[N_ARCH_SLOTS];
    struct kv_layer kv;
    uint32_t attention_kinds, ffn_kinds; /* preparations that Q, K, V and gate, up read */
};

/* What a step reads, in host memory as it lies on the device. */
struct decoder_inputs {
    unsigned char *mirror; /* NULL: batches are uploaded as they are */
    size_t n_bytes;
    struct event *uploaded; /* the mirror may be written again */
    struct role_run *roles; /* [max_rows] */
    uint32_t n_roles;
};

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
    struct layer globals; /* slots that are there once */
    unsigned char *kv_memory, *memory;
    uint64_t kv_bytes, memory_bytes;
    struct decoder_memory mem;
    struct act *act;
    struct rope_params rope;
    struct attention_params attention;
    struct decoder_inputs inputs;
    uint32_t n_rows;               /* of the last step */
    struct decoder_graphs *graphs; /* NULL: steps are run op by op */
    bool has_ahead; /* the inputs of a step of this bucket, without ids, are queued */
    struct decoder_graph_key ahead;
};

/* decoder_inputs.c: brings a batch to the fixed addresses that the ops read. */

/* Of what the last step wrote where copies to the device are worth saving; see .c. */
int decoder_inputs_init(struct decoder *dec, struct error *err);
void decoder_inputs_fini(struct decoder *dec);
/* Rows from batch->n_rows up to n_rows (at most max_rows) and sample rows up to n_sample_rows are
 * filled with rows that touch nothing: token 0 at position 0, kept nowhere. */
int decoder_inputs_upload(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows,
                          uint32_t n_sample_rows);
/* The same in two calls, where there is a mirror and every row is a sample row: first all else,
 * then the token ids. */
int decoder_inputs_ahead(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows);
int decoder_inputs_ids(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows);

/* decoder_graphs.c: captured steps, by buckets of rows and of context. */

int decoder_graphs_create(struct decoder *dec, struct error *err);
void decoder_graphs_destroy(struct decoder *dec);
/* The bucket that runs this batch; false: it is run op by op. */
bool decoder_graphs_key(const struct decoder *dec, const struct step_batch *batch,
                        struct decoder_graph_key *out_key);
/* Replays or captures; dec's inputs are uploaded. */
int decoder_graphs_run(struct decoder *dec, const struct decoder_graph_key *key, struct error *err);

/* decoder.c: queues all ops of a step over uploaded inputs. */
int decoder_queue_step(struct decoder *dec, uint32_t n_rows, uint32_t n_sample_rows,
                       uint32_t n_seqs, uint32_t max_positions);
