/* inner.h: the loops that differ between kernel sets. All sets share the code around the loops
 * (shapes, threads, segments, partitions of work) in *_cpu.c. Each function computes the part of
 * one thread for one row, span or tile; no function allocates. Implementations: plain C (ref_*.c),
 * AVX2 and AVX-512 (*_avx2.c, *_avx512.c from the same *_impl.h in 16-lane vectors), AMX tiles
 * (*_amx.c: linears, attention).
 *
 * Sums over a row use 16 lanes (lane = index mod 16, ascending) and add the lanes by one tree:
 * l[i] + l[i + 8], then + 4, + 2, + 1. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

/* A tile's code is written once and specialised by constant arguments. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct act_cpu;
struct conv_row;
struct span_gates;
struct state_span;
struct weight_cpu;

/* A linear: rows of act × rows of w. */
struct linear_job {
    const struct act_cpu *act;
    const struct weight_cpu *w;
    float *y; /* finished results [m][y_stride]; NULL: integer weights store their sums T instead */
    int32_t *sums; /* [m][sums_stride]: T, or T & 0xffff if there is a high plane */
    int32_t *high; /* [m][y_stride]: T >> 16, for weights with two planes */
    size_t y_stride, sums_stride;
};

/* The part of a job that one thread computes. */
struct linear_share {
    uint32_t row_begin, row_end; /* rows of act */
    uint32_t n_begin, n_end;     /* rows of w; multiples of PANEL_ROWS except at the end of w */
    void *scratch;               /* the thread's own: STREAM_SCRATCH_BYTES (stream_cpu.h) */
};

/* Query rows of one sequence against the KV heads that their query heads read. The query heads of
 * one KV head form a group. Unit u of the work is group u % n_groups in partition u / n_groups, so
 * units are in the order of the cache's memory. Within a tile, queries are numbered group by group:
 * n_rows · (heads of the groups before) + row · (heads of the group) + head in the group. */
struct attention_tile {
    const float
        *q;   /* first row, first head; consecutive rows are q_stride apart, heads head_dim apart */
    float *y; /* the same with y_stride and v_dim */
    size_t q_stride, y_stride;
    const uint32_t *positions; /* [n_rows], ascending */
    const uint32_t *table;     /* block table of the sequence */
    const struct kv_layer *kv;
    uint32_t i_kv;            /* KV head of the first group */
    uint32_t n_rows, n_heads; /* n_rows · n_heads ≤ ATTENTION_MAX_Q */
    uint32_t
        heads_per_kv; /* heads of every group except, at a rank's ends, the first and the last */
    uint32_t first_heads; /* heads of the first group, 1 … heads_per_kv */
    uint32_t n_groups;
    uint32_t window, chunk;
    float scale, softcap;
    const float *slopes; /* per head (attention_params); NULL: no ALiBi */
    const float *sinks;  /* per head (attention_params); NULL: no sinks */
    uint32_t unit_begin, unit_end;
    uint32_t unit_next; /* the unit after this tile's, to prefetch; must be after unit_begin */
    float *parts; /* NULL: the units cover all that the rows attend to, and y is written. Otherwise
                     the units' results go here … */
    uint32_t parts_begin; /* … as [partitions from parts_begin on][n_rows · n_heads] results */
};

/* Returns the number of query heads of group g; *out_begin is the first. */
static inline uint32_t attention_group(const struct attention_tile *t, uint32_t g,
                                       uint32_t *out_begin)
{
    uint32_t begin = g == 0 ? 0 : t->first_heads + (g - 1) * t->heads_per_kv,
             n = g == 0 ? t->first_heads : t->heads_per_kv;
    *out_begin = begin;
    return n < t->n_heads - begin ? n : t->n_heads - begin;
}

/* Returns a tile of group g alone; *out_query is the number of its first query. */
static inline struct attention_tile attention_group_tile(const struct attention_tile *t, uint32_t g,
                                                         uint32_t *out_query)
{
    struct attention_tile alone = *t;
    uint32_t begin;
    alone.n_heads = alone.first_heads = attention_group(t, g, &begin);
    alone.q += (size_t)begin * t->kv->head_dim;
    alone.y += (size_t)begin * t->kv->v_dim;
    if (alone.slopes)
        alone.slopes += begin;
    if (alone.sinks)
        alone.sinks += begin;
    alone.i_kv += g;
    alone.n_groups = 1;
    *out_query = begin * t->n_rows;
    return alone;
}

enum {
    ATTENTION_PARTITION = 128,
    ATTENTION_MAX_Q = 128,
    ATTENTION_MAX_NQ = 16,          /* queries that a kernel processes per partition at once */
    ATTENTION_MAX_HEAD_DIM = 1024,  /* the widest K or V */
    ATTENTION_PRODUCT_BYTES = 4096, /* bytes of intermediate products */
};

/* A query's result over some positions: P·V [attention_dim(v_dim)], the largest score, and Σ
 * exp(score − largest). A sum of 0 means that the query attends to none of the positions. */
static inline uint32_t attention_dim(uint32_t dim)
{
    return (dim + 15) & ~15u;
}
static inline uint32_t attention_result_floats(uint32_t v_dim)
{
    return attention_dim(v_dim) + 16;
}

/* Returns the largest size of a query in the form that a kernel multiplies: two planes of codes,
 * padded to 64. */
static inline size_t attention_query_bytes(uint32_t head_dim)
{
    return 2 * (((size_t)head_dim + 63) & ~(size_t)63);
}

/* Returns the factor from a query's sum of values to its output. The result has the largest score
 * and Σ exp(score − largest); a sink of the query's head adds to this sum alone. */
static inline float attention_factor(const struct attention_tile *t, uint32_t query, float max,
                                     float sum)
{
    if (t->sinks == NULL)
        return 1.0f / sum;
    float sink = t->sinks[query % t->n_heads];
    if (sink <= max)
        return 1.0f / (sum + maths_exp(sink - max));
    float keep = maths_exp(max - sink);
    return keep / (sum * keep + 1.0f);
}

/* Returns the result of a query in partition i within tile->parts. */
static inline float *attention_result(const struct attention_tile *t, uint32_t i, uint32_t query)
{
    return t->parts + ((size_t)(i - t->parts_begin) * t->n_rows * t->n_heads + query) *
                          attention_result_floats(t->kv->v_dim);
}

struct cpu_inner {
    const char *name;
    uint32_t
        row_block_bytes; /* bytes of activations that an item of a linear reads; they stay in L2 */

    /* Σ|x| (lanes and tree) and max|x|. */
    void (*abs_stats)(const float *x, uint32_t n, float *out_sum, float *out_max);
    /* Fills row `row` of act from x[n]: a = rint(x · inv). x NULL: all zeros. */
    void (*quantize)(struct act_cpu *act, uint32_t row, const float *x, uint32_t n, float inv);
    /* Writes the quantized rows [begin, end) in the layout that the set's own linears read; begin
     * is a multiple of ACT_PAIR_ROWS. Called if there are at least arrange_min_rows rows. Optional:
     * default NULL = nothing. */
    void (*arrange)(struct act_cpu *act, uint32_t begin, uint32_t end);
    uint32_t arrange_min_rows;
    void (*linear_int)(const struct linear_job *job, const struct linear_share *share);
    /* Layout of ACT_BF16 rows (act_cpu.h): columns per dword, 2 as bf16 pairs, 1 as f32. */
    uint32_t bf16_columns;
    /* If not 0: ACT_BF16 rows are tiles of pairs, and a share of a linear has at most this many
     * rows. */
    uint32_t bf16_tile_rows;
    /* Rounds ACT_RUN columns of x for the layout above; values below DENSE_TINY become 0. */
    void (*round_bf16)(uint32_t *dst, const float *x);
    /* Dense weights (dense.h). */
    void (*linear_dense)(const struct linear_job *job, const struct linear_share *share);

    void (*rms_norm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, uint32_t n,
                       float eps);
    void (*add)(float *y, const float *x, uint32_t n);
    /* x = softcap(x · factor); softcap 0: none. */
    void (*scale)(float *x, uint32_t n, float factor, float softcap);
    void (*act_mul)(float *y, const float *gate, const float *up, uint32_t n, enum activation kind);
    /* Computes scores of a router (experts.h) from logits[n]. `scores` has room for a multiple
     * of 16. */
    void (*router_scores)(float *scores, const float *logits, uint32_t n, enum router_score score);
    /* y = fma(w, x + bias, y); bias NULL: none. */
    void (*add_weighted)(float *y, const float *x, const float *bias, float w, uint32_t n);
    /* Rotates one row of heads in place. */
    void (*rope)(float *x, uint32_t n_heads, uint32_t position, const struct rope_params *params);
    void (*kv_store)(void *dst, enum dtype type, const float *src, uint32_t n);
    /* Writes the codes of an int8 cache (kv_code.h), stored + 128, and returns their scale. */
    float (*kv_quantize)(uint8_t *codes, const float *src, uint32_t n);
    void (*attention)(const struct attention_tile *tile, void *scratch);
    /* Computes y from the results of all units [unit_begin, unit_end), whole partitions. Overwrites
     * the results. */
    void (*attention_fold)(const struct attention_tile *tile);

    /* The recurrent ops (recurrent/recurrent_span.h). Transposes w[n][width]. */
    void (*conv_taps)(float *taps, size_t taps_stride, const float *w, uint32_t n, uint32_t width);
    void (*conv_row)(const struct conv_row *row);
    /* y = x / √(Σx² + eps) · scale; the sum in lanes and tree. */
    void (*l2_norm)(float *y, const float *x, uint32_t n, float eps, float scale);
    void (*span_gates)(const struct span_gates *gates);
    void (*delta_span)(const struct state_span *span);
    void (*ssm_span)(const struct state_span *span);
};

extern const struct cpu_inner cpu_inner_ref, cpu_inner_avx2, cpu_inner_avx512,
    cpu_inner_avx512_bf16, cpu_inner_amx;

/* A kernel set. `ops` comes first, so that a stream's table pointer also points to the set. */
struct cpu_set {
    struct op_table ops;
    const struct cpu_inner *inner;
};

static inline const struct cpu_inner *inner_of(const struct op_table *ops)
{
    return ((const struct cpu_set *)ops)->inner;
}

/* Adds the 8 segments of the contract by the tree, or an aligned subtree of count = 1, 2, 4 or 8
 * segments. Bit i of `present` marks part i as not empty; empty parts are skipped. Overwrites
 * parts. */
static inline float tree_sum_present(float parts[N_SEGMENTS], uint32_t present, uint32_t count)
{
    for (; count > 1; count /= 2) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < count / 2; i++) {
            uint32_t left = present >> 2 * i & 1, right = present >> (2 * i + 1) & 1;
            parts[i] =
                left && right ? parts[2 * i] + parts[2 * i + 1] : parts[2 * i + (right ? 1 : 0)];
            next |= (left | right) << i;
        }
        present = next;
    }
    return parts[0];
}

/* Does the same if part i has the elements [bounds[i], bounds[i + 1]). */
static inline float tree_sum(float parts[], const uint32_t bounds[], uint32_t count)
{
    uint32_t present = 0;
    for (uint32_t i = 0; i < count; i++)
        present |= (uint32_t)(bounds[i] < bounds[i + 1]) << i;
    return tree_sum_present(parts, present, count);
}
