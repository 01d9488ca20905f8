/* recurrent.h: types of the ops with a state per sequence: causal convolution, gated delta net
 * (arXiv 2412.06464) and Mamba-2 (arXiv 2405.21060).
 *
 * A state is a value in a slot of a pool. A row reads the state before it and may store the state
 * after it. All states are f32. The recurrence, token by token, is the contract. So a row's result
 * and state depend on the sequence's tokens alone (docs/house/numerics-layers.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    RECURRENT_MAX_DIM = 1024, /* key_dim, state_dim and head_dim */
    RECURRENT_MAX_WIDTH = 16, /* taps of a convolution */
};

#define RECURRENT_NONE     UINT32_MAX       /* reads: an empty sequence's state; writes: not kept */
#define RECURRENT_PREVIOUS (UINT32_MAX - 1) /* reads: the state after the row before */

/* A layer's part of the pool: the state in slot s begins at base + s · stride floats.
 *
 * - conv: [width − 1][n_cols], the latest inputs, oldest first
 * - delta_net: [n_heads][key_dim][head_dim]
 * - ssm: [n_heads][state_dim][head_dim] */
struct state_view {
    float *base;
    uint64_t stride;
    uint32_t n_slots;
};

/* The states of each row, on the device. A run is a row that does not read PREVIOUS and the rows
 * after it that do. A slot is written at most once in a step. A written slot is read by its own run
 * alone. A run of one row that reads NONE and writes NONE is padding: its y is unspecified. */
struct state_rows {
    const uint32_t *reads, *writes; /* [n_rows] */
    uint32_t n_rows;
};

/* y = silu(bias + Σ_t w[c][t] · x_t), where x_t are the width latest inputs, oldest first. */
struct conv_params {
    uint32_t n_cols, width;
    const float *w, *bias; /* w[n_cols][width]; bias[n_cols], NULL: 0 */
    bool silu;             /* false: no activation */
};

/* The counts are of this rank; first_head and first_key are its first heads in the whole model. */
struct delta_params {
    uint32_t n_key_heads, n_heads, key_dim, head_dim;
    uint32_t first_head, n_all_key_heads, n_all_heads, first_key;
    bool tiled; /* head h reads key head h % n_all_key_heads; else h / (n_all_heads / those) */
    const float *a, *dt_bias; /* [n_heads]; a is negative */
    float norm_eps, scale;    /* scale: of the queries, after their norm */
};

/* Head h reads group h / (n_heads / n_groups). The counts are of this rank. */
struct ssm_params {
    uint32_t n_groups, n_heads, state_dim, head_dim;
    const float *a, *d, *dt_bias; /* [n_heads]; a is negative */
};

/* Returns the key head, of this rank, that head h of this rank reads. */
static inline uint32_t recurrent_key_head(const struct delta_params *p, uint32_t h)
{
    uint32_t head = p->first_head + h;
    uint32_t key =
        p->tiled ? head % p->n_all_key_heads : head / (p->n_all_heads / p->n_all_key_heads);
    return key - p->first_key;
}
