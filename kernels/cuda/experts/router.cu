/* The router of a layer of experts: the choice per row, and the order of the pairs. */
#include "kernels/cuda/experts/experts_job.h"
#include "kernels/cuda/experts/router_index.h"
#include "kernels/cuda/thread.h"
#include "kernels/router_maths.h"

enum { ORDER_THREADS = 128 };

/* The experts of a row, in shared memory. */
struct router_shared {
    float scores[EXPERTS_MAX], keys[EXPERTS_MAX];
    float group_keys[EXPERTS_MAX_GROUPS];
    uint8_t taken[EXPERTS_MAX], chosen[EXPERTS_MAX], kept[EXPERTS_MAX_GROUPS];
};

/* Returns the id of the first key among those that are not `taken`; the same on all lanes. */
CUDA_DEVICE uint32_t router_best(const float *keys, const uint8_t *taken, uint32_t n, uint32_t lane)
{
    uint32_t id = n;
    float key = ROUTER_LOWEST;
    for (uint32_t i = lane; i < n; i += CUDA_WARP)
        if (!taken[i] && (id == n || keys[i] > key)) {
            id = i;
            key = keys[i];
        }
    for (uint32_t half = CUDA_WARP / 2; half > 0; half /= 2) {
        uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, id, half);
        float its = __shfl_xor_sync(0xFFFFFFFFu, key, half);
        if (other < n && (id == n || router_is_before(its, other, key, id))) {
            id = other;
            key = its;
        }
    }
    return id;
}

/* Writes the scores of a row (router_scores of the CPU: 16 lanes, then a tree). */
CUDA_DEVICE void router_score_row(struct router_shared *s, const float *logits, uint32_t n,
                                  enum router_score score, uint32_t lane)
{
    float max = ROUTER_LOWEST, sum = 0.0f;
    for (uint32_t i = lane; i < n; i += CUDA_WARP)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t half = CUDA_WARP / 2; half > 0; half /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, max, half);
        max = other > max ? other : max;
    }
    for (uint32_t i = lane; i < n; i += CUDA_WARP)
        s->scores[i] = router_score_of(logits[i], max, score);
    __syncwarp();
    for (uint32_t i = router_lane_of(lane); i < n; i += CUDA_LANES)
        sum += s->scores[i];
    for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    __syncwarp();
    for (uint32_t i = lane; score == ROUTER_SOFTMAX && i < n; i += CUDA_WARP)
        s->scores[i] = router_part(s->scores[i], sum);
    __syncwarp();
}

/* Takes the experts of all but the best groups. */
CUDA_DEVICE void router_take_groups(struct router_shared *s, const struct router_params *p,
                                    uint32_t lane)
{
    uint32_t size = router_group_size(p->n_experts, p->n_groups);
    for (uint32_t g = lane; g < p->n_groups; g += CUDA_WARP) {
        float best[2] = {ROUTER_LOWEST, ROUTER_LOWEST};
        for (uint32_t i = 0; i < size; i++)
            router_add_to_group(s->keys[router_expert_at(g, size, i)], best);
        s->group_keys[g] = router_key(router_group_key(best, size, p->group_score), 0.0f);
        s->kept[g] = 0;
    }
    __syncwarp();
    for (uint32_t used = 0; used < p->n_used_groups; used++) {
        uint32_t best = router_best(s->group_keys, s->kept, p->n_groups, lane);
        __syncwarp();
        if (lane == 0)
            s->kept[best] = 1;
        __syncwarp();
    }
    for (uint32_t i = lane; i < p->n_experts; i += CUDA_WARP)
        s->taken[i] = !s->kept[router_group_of(i, size)];
    __syncwarp();
}

static __global__ void __launch_bounds__(CUDA_WARP)
    route_rows(struct expert_routes routes, const float *logits, size_t stride,
               struct router_params p)
{
    __shared__ struct router_shared shared;
    cuda_op_begin();
    uint32_t lane = threadIdx.x, row = blockIdx.x;
    const float *x = logits + cuda_row(row, stride);
    router_score_row(&shared, x, p.n_experts, p.score, lane);
    for (uint32_t i = lane; i < p.n_experts; i += CUDA_WARP) {
        shared.keys[i] = router_expert_key(x[i], shared.scores[i], &p, i);
        shared.taken[i] = shared.chosen[i] = 0;
    }
    __syncwarp();
    if (p.n_groups > 1)
        router_take_groups(&shared, &p, lane);
    for (uint32_t used = 0; used < p.n_used; used++) {
        uint32_t best = router_best(shared.keys, shared.taken, p.n_experts, lane);
        __syncwarp();
        if (lane == 0)
            shared.taken[best] = shared.chosen[best] = 1;
        __syncwarp();
    }
    if (lane != 0)
        return;
    uint32_t *ids = routes.ids + cuda_row(row, p.n_used), n = 0;
    float *weights = routes.weights + cuda_row(row, p.n_used);
    for (uint32_t i = 0; i < p.n_experts && n < p.n_used; i++)
        if (shared.chosen[i]) {
            ids[n] = i;
            weights[n++] = shared.scores[i];
        }
    router_weigh(weights, ids, p.n_used, &p);
}

int cuda_launch_router(void *stream, const struct expert_routes *routes, const float *logits,
                       size_t stride, const struct router_params *p)
{
    return CUDA_LAUNCH(route_rows, routes->n_rows, CUDA_WARP, 0, stream, *routes, logits, stride,
                       *p);
}

/* Each thread counts its pairs of lower experts and of this expert. Then the thread places its
 * pairs of this expert. */
static __global__ void __launch_bounds__(ORDER_THREADS) order_pairs(struct expert_routes routes)
{
    __shared__ uint32_t less[ORDER_THREADS];
    __shared__ uint32_t equal[ORDER_THREADS];
    cuda_op_begin();
    uint32_t expert = blockIdx.x, t = threadIdx.x;
    uint32_t n_pairs = router_n_pairs(routes.n_rows, routes.n_used);
    uint32_t begin, end, n_less = 0, n_equal = 0;
    router_share(n_pairs, t, ORDER_THREADS, &begin, &end);
    for (uint32_t i = begin; i < end; i++) {
        n_less += routes.ids[i] < expert;
        n_equal += routes.ids[i] == expert;
    }
    less[t] = n_less;
    equal[t] = n_equal;
    __syncthreads();
    uint32_t place = 0;
    for (uint32_t i = 0; i < ORDER_THREADS; i++)
        place += less[i];
    if (t == 0) {
        routes.begins[expert] = place;
        if (expert + 1 == routes.n_experts)
            routes.begins[routes.n_experts] = n_pairs;
    }
    for (uint32_t i = 0; i < t; i++)
        place += equal[i];
    for (uint32_t i = begin; i < end; i++)
        if (routes.ids[i] == expert) {
            routes.places[i] = place;
            routes.rows[place++] = router_row_of(i, routes.n_used);
        }
}

int cuda_launch_router_order(void *stream, const struct expert_routes *routes)
{
    return CUDA_LAUNCH(order_pairs, routes->n_experts, ORDER_THREADS, 0, stream, *routes);
}
