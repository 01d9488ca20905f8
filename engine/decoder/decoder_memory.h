/* decoder_memory.h: the layout of a decoder's workspace and KV pools in two allocations. Pure
 * arithmetic: the same functions plan the sizes and place the arrays. Internal to the decoder. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/decoder/decoder.h"
#include "kernels/ops.h"

/* Device memory of a step; all offsets are 256-byte multiples. */
struct decoder_memory {
    uint64_t n_bytes;
    float *x, *h, *y_attention, *y_ffn, *partial; /* [max_rows, hidden] */
    /* wide enough for every layer of the rank: */
    float *q, *mixed;      /* [max_rows, heads · k_dim] and [max_rows, heads · v_dim] */
    float *k, *v;          /* the same for the rank's KV heads */
    float *attention_gate; /* as `mixed`, for gates of attention; else NULL */
    float *gate, *up;      /* [max_rows, MLP] of the rank */
    /* recurrent layers; NULL without: [max_rows, Q, K and V], twice [max_rows, V], and [max_rows,
     * heads] */
    float *state_inputs, *state_gate, *state_values, *state_dt, *state_beta;
    /* latent attention; NULL without: [max_rows, q_rank], then by heads of the rank: queries
     * without rope and with rope, and mixed latent values */
    float *latent_q, *latent_nope, *latent_rope, *latent_mixed;
    float *inv_freq[ARCH_MAX_ROPES]; /* [tables][n_rot / 2] */
    /* Per-layer inputs: two of [max_rows, layers · width], and [max_rows, width]; else NULL. */
    float *layer_inputs, *layer_embds, *layer_gate;
    float *ones; /* [head_dim], for norms without weights */
    bool has_ones;
    float *temperature; /* factors of queries: [n_temperature], one for each period of positions */
    uint32_t n_temperature;
    /* with experts: [max_rows, experts] and [max_rows]; the routes; and [n_pairs] rows, a pair for
     * each row and chosen expert */
    float *router_logits, *shared_gate;
    void *routes;
    float *pair_rows, *pair_gate, *pair_up, *pair_partial;
    uint32_t n_pairs;
    float *slopes; /* with ALiBi: [query heads of the rank] */
    uint32_t *token_ids, *positions, *kv_slots, *seq_of_row; /* [max_rows] */
    uint32_t *rope_tables;                /* [max_rows]; NULL: all rows have table 0 */
    uint32_t *state_reads, *state_writes; /* [max_rows]; NULL: no recurrent layers */
    uint32_t *window_slots;               /* [max_rows]; NULL: no blocks for windows */
    uint32_t *sample_rows;                /* [max_logits] */
    uint32_t *block_tables;               /* [max_seqs][max_blocks_per_seq] */
    uint32_t *window_tables;              /* the same, or NULL */
    /* offset of token_ids; token_ids to window_tables are adjacent and end the memory */
    uint64_t inputs_at;
};

/* base NULL: only n_bytes is valid. */
void decoder_memory_layout(const struct rank_plan *plan, const struct model_shape *shape,
                           unsigned char *base, struct decoder_memory *out_memory);

/* Tables of frequencies of a rope set. */
static inline uint32_t decoder_rope_tables(const struct rope_set *set)
{
    return set->scaling == ROPE_SCALING_LONGROPE ? ROPE_MAX_TABLES : 1;
}

/* A pool of the KV memory: a block's bytes for every block of the cache. */
struct decoder_plane {
    uint64_t offset_bytes, block_bytes; /* block_bytes 0: the layer has no such pool of its own */
};

enum { DECODER_MAX_PLANES = 2 }; /* K and V */

/* The layer's planes. A layer that reads another layer's K and V has none. Layers are counted
 * within the rank. Returns the bytes of all planes up to this layer. */
uint64_t decoder_memory_planes(const struct rank_plan *plan, const struct model_shape *shape,
                               uint32_t i_layer, struct decoder_plane out[DECODER_MAX_PLANES]);
/* True if the layer reads blocks for windows. Layers are counted within the rank. */
bool decoder_memory_is_windowed(const struct rank_plan *plan, const struct model_shape *shape,
                                uint32_t i_layer);
/* Sets the pools that a layer reads; the memory at `base` has decoder_kv_bytes() bytes. */
void decoder_memory_kv(const struct rank_plan *plan, const struct model_shape *shape,
                       unsigned char *base, uint32_t i_layer, struct kv_layer *out_kv);

/* The parts of a layer's state within a slot, in floats from the begin of the slot. Slots lie one
 * after the other, a slot with the layers of the rank in order. All parts begin at a multiple of 64
 * bytes. */
enum { DECODER_STATE_Q, DECODER_STATE_K, DECODER_STATE_V, DECODER_STATE_HEADS, N_DECODER_STATES };
struct decoder_state_layout {
    uint64_t parts[N_DECODER_STATES]; /* the convolutions' inputs of Q, K and V; the heads */
    uint64_t end;
};

/* Layers are counted within the rank. */
void decoder_memory_state(const struct rank_plan *plan, const struct model_shape *shape,
                          uint32_t i_layer, struct decoder_state_layout *out);

/* Bytes of the prepared activations of experts; 0 without experts. */
uint64_t decoder_memory_expert_act(const struct rank_plan *plan, const struct model_shape *shape,
                                   const struct op_table *ops);
/* Widest input of an expert's linears. */
uint32_t decoder_memory_expert_k(const struct rank_plan *plan, const struct model_shape *shape);
/* Widest input of any other linear on this rank. */
uint32_t decoder_memory_max_k(const struct rank_plan *plan, const struct model_shape *shape);
