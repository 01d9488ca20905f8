/* experts.h: a layer of experts (mixture of experts). Types of the ops router_topk and experts
 * (ops.h).
 *
 *   logits[m, n_experts] ──router_topk──► routes ──experts──► y[m, hidden]
 *
 * A pair is a row and an expert chosen for the row. Pairs are ordered by expert, then by row, so
 * the rows of an expert are adjacent. Plain data; used by one stream at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/maths.h"
#include "kernels/segments.h"
#include "kernels/tensor.h"

struct act;
struct weight;

enum {
    EXPERTS_MAX = 1024,       /* experts of a layer */
    EXPERTS_MAX_USED = 64,    /* experts of a row */
    EXPERTS_MAX_GROUPS = 64,  /* groups of experts */
    EXPERTS_MAX_THEN = 3,     /* see struct experts */
    EXPERTS_MIN_PAIRS = 32,   /* pairs at once, at least */
    EXPERTS_BATCH_PAIRS = 512 /* see experts_max_pairs() */
};

/* The score of an expert, from its logit x. */
enum router_score {
    ROUTER_SOFTMAX,       /* softmax over all experts */
    ROUTER_SIGMOID,       /* 1 / (1 + e^-x) */
    ROUTER_TOPK_SOFTMAX,  /* x itself; the weights are a softmax over the chosen experts */
    ROUTER_SQRT_SOFTPLUS, /* √ln(1 + e^x) */
};

/* The score of a group of experts. */
enum router_group_score {
    ROUTER_GROUP_MAX,     /* its best expert */
    ROUTER_GROUP_TOP_TWO, /* the sum of its two best experts */
};

/* The n_used experts with the largest score + bias are chosen; ties go to the lower id. NaN counts
 * as the smallest score. Weights come from scores without the bias. */
struct router_params {
    enum router_score score;
    uint32_t n_experts, n_used; /* 1 ≤ n_used ≤ n_experts */
    const float *bias;          /* [n_experts] on the device; for the choice only. NULL: none */
    /* The experts are n_groups groups of adjacent ids, of equal size. Only experts of the
     * n_used_groups best groups can be chosen. n_groups 0 or 1: no groups. */
    uint32_t n_groups, n_used_groups;
    enum router_group_score group_score;
    /* The weights of a row are divided by max(their sum, min_sum) + add_sum. */
    bool renormalise;
    float min_sum, add_sum;
    float scale; /* multiplies every weight at the end; usually 1 */
    /* [n_experts] on the device: multiplies the weight of the expert, after `scale`. NULL: none */
    const float *expert_scale;
};

/* The chosen experts of every row. All arrays are device memory. */
struct expert_routes {
    uint32_t n_rows, n_used, n_experts; /* written by op_router_topk() */
    uint32_t *ids;                      /* [n_rows][n_used], ascending in a row */
    float *weights;                     /* [n_rows][n_used] */
    uint32_t *places;                   /* [n_rows][n_used]: index of the pair */
    uint32_t *rows;                     /* [n_rows · n_used]: row of the pair with this index */
    uint32_t *begins;                   /* [n_experts + 1]: the first pair of each expert */
    uint32_t *tiles; /* [n_experts + 1 + n_rows · n_used] for the op experts of a GPU */
    uint32_t max_rows, max_used, max_experts; /* room in the arrays */
};

/* Returns the device bytes of the arrays for steps of up to max_rows rows. */
size_t experts_routes_bytes(uint32_t max_rows, uint32_t max_used, uint32_t max_experts);
/* Places the arrays in `memory`: experts_routes_bytes() of device memory, 256-byte aligned,
 * borrowed for the life of *out_routes. */
void experts_routes_init(struct expert_routes *out_routes, void *memory, uint32_t max_rows,
                         uint32_t max_used, uint32_t max_experts);

/* The experts of a layer on this rank. A rank holds the same part of the FFN width of every expert.
 * The width of this rank is ff: gate and up are LINEAR_COLUMN [ff, hidden], down is LINEAR_ROW
 * [hidden, ff].
 * Each array has n weights of equal shape and type. If weights lie on a device, their data must be
 * equally far apart: allocate them one after the other. */
struct experts {
    uint32_t n;
    const struct weight *const *gate; /* NULL: activation(up) alone */
    const struct weight *const *up, *const *down;
    const float *gate_bias, *up_bias; /* [n][ff] on the device; NULL: none */
    const float *down_bias; /* [n][hidden] on the device; NULL: none. Whole on each rank */
    enum activation activation;
    /* true: the weight of a pair multiplies the expert's input. false: the expert's output */
    bool weighs_input;
    const struct segments *segments; /* the split of the FFN width: that of `down` */
    /* Weights that are read after this layer of experts; see op_will_read(). May be empty. */
    const struct weight *then[EXPERTS_MAX_THEN];
    uint32_t n_then;
    /* Set by op_experts_bind(): the bytes from a weight to the next in gate, up and down. */
    size_t strides[3];
};

/* Memory for the products, borrowed. The capacity of `act` is the number of pairs that are computed
 * at once. A step needs at least its number of rows, and EXPERTS_MIN_PAIRS. The tensors have as
 * many rows, and may be wider. Results do not depend on that number. */
struct expert_work {
    struct act *act;        /* for rows of max(hidden, ff) columns */
    struct tensor rows;     /* [n_pairs, hidden]: inputs, later outputs */
    struct tensor gate, up; /* [n_pairs, ff]; without a gate, `gate` is unused */
    struct tensor partial;  /* [n_pairs, hidden] of 4-byte elements; used at comm size > 1 */
};

/* Returns the recommended number of pairs that are computed at once. */
uint32_t experts_max_pairs(uint32_t max_rows);
