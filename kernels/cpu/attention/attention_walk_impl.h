/* attention_walk_impl.h: attention of a tile of query rows of one sequence against the KV heads
 * that they read. Per partition of 128 positions: scores, softmax within the partition, P·V. The
 * result is then folded into the running result in index order. If several threads share a context,
 * the result is left for attention_fold(). A query's result depends on its own position only.
 * Sources: arXiv 2205.14135 (online softmax), 2309.06180 (paged KV). The includer must have
 * included attention_steps_impl.h and must define
 *
 *     prepare_queries()     converts a group's queries for products, before its first unit
 *     untiled_partition()   finds a partition in an untiled cache
 *     prepare_partition()   prepares a unit's partition, once per unit
 *     group_scores()        multiplies up to ATTENTION_NQ queries with K …
 *     group_values()        … and their weights with V
 *     mend_values()         repairs 0 · infinity, for queries that do not attend to the position
 *                           with the infinite value */
#pragma once

#include "kernels/cpu/attention/attention_steps_impl.h"

/* Computes queries [q, q + nq) of the tile against a partition; results[i] receives the result of
 * query q + i. */
static void attend(const struct attention_tile *t, const struct attention_scratch *s,
                   const struct partition *part, uint32_t q, uint32_t nq, float *const results[])
{
    struct group g = {.q = q, .n = nq};
    for (uint32_t i = 0; i < nq; i++) {
        g.p[i] = s->p + (size_t)i * PART;
        visible(t, t->positions[(q + i) / t->n_heads], part->base, &g.first[i], &g.last[i]);
        g.most = g.last[i] > g.most ? g.last[i] : g.most;
        results[i][s->v_dim + 1] = 0.0f;
    }
    g.whole = (g.most + KV_TILE - 1) / KV_TILE * KV_TILE;
    group_scores(t, s, part, &g);
    for (uint32_t i = 0; i < nq; i++) {
        struct bias bias = bias_of(t, part, q + i);
        if (g.first[i] < g.last[i])
            softmax_partition(t, part, &bias, g.p[i], g.first[i], g.last[i], g.whole,
                              &results[i][s->v_dim], &results[i][s->v_dim + 1]);
    }
    group_values(s, part, &g, results);
    mend_values(s, part, &g, results);
}

/* Computes y of query q of a group from its result over all partitions. */
static void finish_query(const struct attention_tile *t, uint32_t q, const float *out, uint32_t dim)
{
    uint32_t n = t->kv->v_dim;
    float *y = t->y + q / t->n_heads * t->y_stride + (size_t)(q % t->n_heads) * n;
    float scale = attention_factor(t, q, out[dim], out[dim + 1]);
    for (uint32_t d = 0; d + 16 <= n; d += 16)
        v_store(y + d, v_mul(v_load(out + d), v_set1(scale)));
    for (uint32_t d = n & ~15u; d < n; d++)
        y[d] = out[d] * scale;
}

/* Computes y of group g from the results of all queries of the tile. */
static void finish_group(const struct attention_tile *t, uint32_t g, const float *results)
{
    uint32_t first, result = attention_result_floats(t->kv->v_dim);
    struct attention_tile group = attention_group_tile(t, g, &first);
    for (uint32_t q = 0; q < t->n_rows * group.n_heads; q++)
        finish_query(&group, q, results + (size_t)(first + q) * result,
                     attention_dim(t->kv->v_dim));
}

/* Computes one unit: all queries of the group `t`; `first` is the number of its first query. */
static void attend_unit(const struct attention_tile *whole, const struct attention_tile *t,
                        const struct attention_scratch *s, const struct partition *part,
                        uint32_t first)
{
    uint32_t n_q = t->n_rows * t->n_heads;
    bool keep = whole->parts != NULL;
    for (uint32_t q = 0; q < n_q; q += ATTENTION_NQ) {
        uint32_t nq = n_q - q < ATTENTION_NQ ? n_q - q : ATTENTION_NQ;
        if (t->positions[(q + nq - 1) / t->n_heads] < part->base && !keep)
            continue; /* rows ascend: rows before the partition come first */
        float *results[ATTENTION_NQ];
        for (uint32_t j = 0; j < nq; j++)
            results[j] = keep ? attention_result(whole, part->base / PART, first + q + j)
                              : s->part + (size_t)j * s->result;
        attend(t, s, part, q, nq, results);
        for (uint32_t j = 0; j < nq && !keep; j++)
            fold(s->out + (size_t)(first + q + j) * s->result, results[j], s->v_dim);
    }
}

/* Unit `unit`: its group alone, the group's scratch and, in a tiled cache, its partition. */
struct unit {
    struct attention_tile t;
    struct attention_scratch s;
    struct partition part;
    uint32_t first; /* number of the first query */
};

static void find_unit(const struct attention_tile *t, const struct attention_scratch *s,
                      uint32_t unit, struct unit *out)
{
    out->t = attention_group_tile(t, unit % t->n_groups, &out->first);
    out->s = *s;
    out->s.codes += out->first * s->query_bytes;
    out->s.q_scales += out->first;
    out->s.q_sums += out->first;
    if (kv_is_tiled(t->kv))
        out->part =
            find_partition(&out->t, unit / t->n_groups * PART, t->positions[t->n_rows - 1] + 1);
}

/* Sets the memory to prefetch while tile j of a partition is read. */
static void set_next(struct partition *part, const struct partition *next, uint32_t j)
{
    bool there = next->k[j] != NULL;
    part->next_k[j] = there ? next->k[j] : part->k[0];
    part->next_v[j] = there ? next->v[j] : part->v[0];
}

/* Computes all units of the tile, and y if no parts are kept. */
static void walk_units(const struct attention_tile *t, const struct attention_scratch *scratch)
{
    struct attention_scratch s = *scratch;
    uint32_t n_q = t->n_rows * t->n_heads, longest = t->positions[t->n_rows - 1] + 1;
    struct unit units[2] = {{.first = 0}}, *at = &units[0], *next = &units[1];
    for (uint32_t q = 0; q < n_q && t->parts == NULL; q++)
        s.out[(size_t)q * s.result + s.v_dim + 1] = 0.0f;
    find_unit(t, &s, t->unit_begin, at);
    for (uint32_t u = t->unit_begin; u < t->unit_end; u++) {
        if (u < t->unit_begin + t->n_groups)
            prepare_queries(&at->t, &at->s); /* the first unit of the group */
        if (!kv_is_tiled(t->kv))
            at->part = untiled_partition(&at->t, &s, u / t->n_groups * PART, longest);
        uint32_t after = u + 1 < t->unit_end ? u + 1 : t->unit_next;
        if (after > u)
            find_unit(t, &s, after, next);
        for (uint32_t j = 0; j < PART_TILES; j++)
            set_next(&at->part, &next->part, j);
        prepare_partition(&at->t, &at->s, &at->part);
        attend_unit(t, &at->t, &at->s, &at->part, at->first);
        struct unit *done = at;
        at = next;
        next = done;
    }
    for (uint32_t g = 0; g < t->n_groups && t->parts == NULL; g++)
        finish_group(t, g, s.out);
}
