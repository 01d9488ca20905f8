/* support_recurrent.h: sequences of random rows for the recurrent ops. The set "ref" computes the
 * rows' results and states, one row at a time. */
#pragma once

#include "tests/unit/kernels/support/support_kernels.h"

enum recurrent_kind { KIND_CONV, KIND_DELTA, KIND_SSM };

struct recurrent_shape {
    enum recurrent_kind kind;
    uint32_t n_keys, n_heads; /* n_keys: key heads, or groups of ssm */
    uint32_t dim, head_dim;   /* conv: width and n_cols */
    bool tiled, silu, has_bias;
};

/* Memory of another device than the CPU. put(): a copy of host memory. */
struct recurrent_memory {
    void *(*put)(const void *host, size_t n_bytes);
    void (*get)(void *host, const void *data, size_t n_bytes);
    void (*drop)(void *data, size_t n_bytes);
};

struct recurrent_world {
    struct recurrent_shape shape;
    const struct recurrent_memory *memory; /* the tested op's; NULL: host memory */
    uint32_t n_seqs, n_tokens;             /* tokens of each sequence */
    uint32_t x_cols, y_cols;
    size_t state_floats, slot_floats; /* slot_floats: from one slot to the next */
    float *x, *dt, *beta;             /* [n_seqs · n_tokens][…] */
    float *a, *d, *dt_bias, *w;
    float *y, *states; /* [n_seqs · n_tokens][y_cols], and [state_floats]; NULL without states */
};

/* A row of a step. `token` is sequence · n_tokens + position; y gets y_cols floats. */
struct recurrent_row {
    uint32_t token, reads, writes;
    float *y;
};

struct recurrent_world recurrent_open(const struct recurrent_shape *shape, uint32_t n_seqs,
                                      uint32_t n_tokens, uint64_t seed);
void recurrent_close(struct recurrent_world *w);
/* Returns the state after a position. */
const float *recurrent_state(const struct recurrent_world *w, uint32_t seq, uint32_t position);
uint32_t token_position(const struct recurrent_world *w, uint32_t token);

/* Runs the op on some rows and returns its result. Rows of x and y have space between them, and
 * that of y stays unwritten. in_place: y of a convolution is x. */
int recurrent_step(const struct recurrent_world *w, const struct rig *rig, float *pool,
                   uint32_t n_slots, const struct recurrent_row *rows, uint32_t n, bool in_place);
/* Runs sequence 0 with the heads [first_head, + n_heads) of a delta net alone. */
void recurrent_check_rank(const struct recurrent_world *w, const struct rig *rig,
                          uint32_t first_head, uint32_t n_heads, uint32_t piece);
/* Returns the largest errors of y and of the last state against float64, as parts of the largest
 * values. */
void recurrent_float64_error(const struct recurrent_shape *shape, uint32_t n_tokens,
                             double *out_error, double *out_state_error);
