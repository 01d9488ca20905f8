/* support_attention_world.h: sequences with their queries, keys and values, and steps that write
 * and attend them in a cache of scattered blocks. */
#pragma once

#include "tests/unit/kernels/support/support_kernels.h"

enum { MAX_TOKENS = 1024 };
enum { V_IN_K = 1 << 16 }; /* a vector of V is the beginning of that of K */

struct setup {
    uint32_t head_dim, n_heads, n_kv, block_size;
    enum dtype kv_type;
    uint32_t window;
    float softcap;
    uint32_t lengths[3]; /* tokens of each sequence; 0 ends the list */
    uint32_t v_dim;      /* 0: head_dim; may have V_IN_K */
};

/* All tokens of all sequences, with their queries, keys, values and places in the cache. */
struct world {
    const struct setup *s;
    uint32_t n_tokens, n_seqs, n_blocks, stride, v_dim;
    bool v_in_k;
    uint32_t *positions, *seqs, *slots, *tables;
    float *q, *k, *v;
    const float *slopes; /* ALiBi of the heads; NULL: none */
    const float *sinks;  /* logits of the heads; NULL: none */
    uint32_t chunk;      /* as in attention_params */
};

struct world make_world(const struct setup *s, struct random *r);
void free_world(struct world *w);

/* Returns a cache full of NaN, so that a read of unwritten values shows. */
struct kv_layer make_cache(const struct world *w);
void free_cache(struct kv_layer *kv);

/* Writes and attends tokens [begin, begin + n). */
void step(const struct rig *rig, const struct world *w, const struct kv_layer *kv, uint32_t begin,
          uint32_t n, float *y);

/* Runs all tokens in chunks of `chunk` tokens. The caller frees the result. */
float *run_world(const char *set, uint32_t threads, const struct world *w, uint32_t chunk);

/* Returns true if the kernel set adds values of a bf16 cache in another order than the reference.
 */
bool adds_in_tiles(const char *set, const struct setup *s);
