#include <string.h>

#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/router_maths.h"

enum { MIN_PARALLEL = 2048, LANES = 16 };

struct router_job {
    const struct cpu_inner *inner;
    struct expert_routes *routes;
    const struct tensor *logits;
    const struct router_params *params;
};

/* Marks the experts of all but the best groups as taken. */
static void take_worse_groups(const struct router_params *p, const float *keys, bool *taken)
{
    uint32_t size = p->n_experts / p->n_groups;
    float group_keys[EXPERTS_MAX_GROUPS];
    bool kept[EXPERTS_MAX_GROUPS] = {false};
    for (uint32_t g = 0; g < p->n_groups; g++) {
        float best[2] = {ROUTER_LOWEST, ROUTER_LOWEST};
        for (uint32_t i = 0; i < size; i++)
            /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): there is a key per expert */
            router_add_to_group(keys[g * size + i], best);
        group_keys[g] = router_key(router_group_key(best, size, p->group_score), 0.0f);
    }
    for (uint32_t n = 0; n < p->n_used_groups; n++) {
        uint32_t chosen = p->n_groups;
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (!kept[g] && (chosen == p->n_groups ||
                             router_is_before(group_keys[g], g, group_keys[chosen], chosen)))
                chosen = g;
        kept[chosen] = true;
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (!kept[g])
            memset(taken + (size_t)g * size, true, size);
}

/* Marks the chosen experts of a row. */
static void choose(const struct router_params *p, const float *logits, const float *scores,
                   bool *chosen)
{
    float keys[EXPERTS_MAX];
    bool taken[EXPERTS_MAX];
    memset(taken, 0, p->n_experts);
    for (uint32_t i = 0; i < p->n_experts; i++)
        keys[i] = router_expert_key(logits[i], scores[i], p, i);
    memset(chosen, 0, p->n_experts);
    if (p->n_groups > 1)
        take_worse_groups(p, keys, taken);
    for (uint32_t n = 0; n < p->n_used; n++) {
        uint32_t best = p->n_experts;
        for (uint32_t i = 0; i < p->n_experts; i++)
            if (!taken[i] && (best == p->n_experts || keys[i] > keys[best]))
                best = i;
        taken[best] = chosen[best] = true;
    }
}

static void route_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct router_job *job = arg;
    const struct router_params *p = job->params;
    float scores[EXPERTS_MAX + LANES];
    bool chosen[EXPERTS_MAX];
    uint32_t begin, end;
    thread_pool_share(job->logits->n_rows, 1, index, n_threads, &begin, &end);
    for (uint32_t r = begin; r < end; r++) {
        uint32_t *ids = job->routes->ids + (size_t)r * p->n_used, n = 0;
        float *weights = job->routes->weights + (size_t)r * p->n_used;
        job->inner->router_scores(scores, tensor_row_f32(job->logits, r), p->n_experts, p->score);
        choose(p, tensor_row_f32(job->logits, r), scores, chosen);
        for (uint32_t i = 0; i < p->n_experts; i++)
            if (chosen[i]) {
                ids[n] = i;
                weights[n++] = scores[i];
            }
        router_weigh(weights, ids, p->n_used, p);
    }
}

/* Orders the pairs by expert, then by row. */
static void order_pairs(struct expert_routes *routes)
{
    uint32_t n_pairs = routes->n_rows * routes->n_used, *begins = routes->begins, sum = 0;
    uint32_t next[EXPERTS_MAX];
    memset(next, 0, routes->n_experts * sizeof(next[0]));
    for (uint32_t i = 0; i < n_pairs; i++)
        next[routes->ids[i]]++;
    for (uint32_t e = 0; e < routes->n_experts; e++) {
        begins[e] = sum;
        sum += next[e];
        next[e] = begins[e];
    }
    begins[routes->n_experts] = sum;
    for (uint32_t i = 0; i < n_pairs; i++) {
        uint32_t place = next[routes->ids[i]]++;
        routes->places[i] = place;
        routes->rows[place] = i / routes->n_used;
    }
}

int router_topk_cpu(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                    const struct router_params *params)
{
    struct router_job job = {inner_of(s->ops), routes, logits, params};
    ops_run_job(s, route_rows, &job,
                logits->n_rows > 1 &&
                    (uint64_t)logits->n_rows * logits->n_cols * params->n_used >= MIN_PARALLEL);
    order_pairs(routes);
    return 0;
}
