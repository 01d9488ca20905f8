/* decoder_memory.h: the layout of a decoder's workspace and KV pools in two allocations. Pure
 * arithmetic: the same functions plan the sizes and place the arrays. Internal to the decoder. */
#pragma once

#include <stdint.h>

#include "engine/forward/decoder.h"
#include "kernels/ops.h"

/* Device memory of a step; all offsets are 256-byte multiples. */
struct decoder_memory {
    uint64_t n_bytes;
    float *x, *h, *y_attention, *y_ffn, *partial; /* [max_rows, hidden] */
    float *q, *mixed;                             /* [max_rows, heads · head_dim] of the rank */
    float *k, *v;                                 /* [max_rows, KV heads · head_dim] of the rank */
    float *gate, *up;                             /* [max_rows, MLP] of the rank */
    float *inv_freq;                              /* [n_rot / 2] */
    float *slopes;                                /* with ALiBi: [query heads of the rank] */
    uint32_t *token_ids, *positions, *kv_slots, *seq_of_row; /* [max_rows] */
    uint32_t *sample_rows;                                   /* [max_logits] */
    uint32_t *block_tables;                                  /* [max_seqs][max_blocks_per_seq] */
    /* offset of token_ids; token_ids to block_tables are adjacent and end the memory */
    uint64_t inputs_at;
};

/* base NULL: only n_bytes is valid. */
void decoder_memory_layout(const struct rank_plan *plan, const struct model_shape *shape,
                           unsigned char *base, struct decoder_memory *out_memory);

/* Sets one layer's pools; the memory at `base` has decoder_kv_bytes() bytes. */
void decoder_memory_kv(const struct rank_plan *plan, const struct model_shape *shape,
                       unsigned char *base, uint32_t i_layer, struct kv_layer *out_kv);

/* Widest input of any linear on this rank. */
uint32_t decoder_memory_max_k(const struct rank_plan *plan, const struct model_shape *shape);
