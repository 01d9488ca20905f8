/* support_gpu_attention.h: sequences with queries, keys and values, and their cache on the GPU.
 * Computes attention of any of their rows there, and in f64 on the CPU. */
#pragma once

#include "tests/gpu/support/support_gpu.h"

struct gpu_setup {
    enum dtype dtype;
    uint32_t head_dim, n_kv, heads_per_kv, block_size, window;
    float softcap;
    uint32_t lengths[4]; /* tokens of each sequence; 0 ends the list */
};

struct gpu_world {
    struct gpu_setup s;
    uint32_t n_seqs, n_tokens, n_heads, stride, n_blocks, v_dim;
    uint32_t first[4];      /* token of each sequence's position 0 */
    uint32_t *tables;       /* host; entries beyond a sequence's end are out of the pool */
    float *q, *k, *v;       /* [n_tokens][heads · head_dim], V: v_dim; host */
    float *k_held, *v_held; /* K and V with the precision of the cache */
    size_t pool_bytes, v_pool_bytes;
    void *pool_k, *pool_v, *device_tables; /* pool_v NULL: V is the first elements of K */
    float *slopes, *device_slopes;         /* ALiBi of the heads; NULL: none */
    float *sinks, *device_sinks;           /* logits of the heads; NULL: none */
    uint32_t chunk;                        /* as in attention_params */
    /* heads of the rank; at first all heads */
    uint32_t head_begin, rank_heads, kv_begin, rank_kv;
};

struct gpu_row {
    uint32_t seq, position;
};

/* Random values; the cache is poisoned and then written by the GPU, in one op. */
struct gpu_world gpu_world_create(const struct gpu_setup *s, struct random *r);
/* The same with vectors of V of another width than those of K. */
struct gpu_world gpu_world_create_widths(const struct gpu_setup *s, uint32_t v_dim,
                                         struct random *r);
/* The same with a latent cache: V is the first v_dim elements of K. */
struct gpu_world gpu_world_create_latent(const struct gpu_setup *s, uint32_t v_dim,
                                         struct random *r);
void gpu_world_destroy(struct gpu_world *w);
/* Gives the heads ALiBi slopes, for all later calls. */
void gpu_world_slope(struct gpu_world *w);
/* Gives the heads sinks, for all later calls. */
void gpu_world_sink(struct gpu_world *w);
/* Writes K and V of all tokens into the cache (again), for the rank's KV heads. */
void gpu_world_fill(struct gpu_world *w);

/* Returns y[n][rank_heads · v_dim] of rows; the caller frees. The device's y is NaN before.
 * n_roles 0: all rows use path D. */
float *gpu_attend(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                  const struct role_run *roles, uint32_t n_roles, uint32_t max_positions);
/* The same, with all rows on one path. */
float *gpu_attend_path(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                       bool generated);

/* The same by the CPU's plain reference; not for F8_E4M3. The caller frees. */
float *cpu_attend(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n);

/* The largest error of rows' outputs, relative to the largest |V| that the head sees. */
double gpu_attention_error(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                           const float *y);
