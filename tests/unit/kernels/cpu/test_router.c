/* Tests of op_router_topk: the choice against plain sorting, the weights against float64, ties,
 * groups, values that are not finite. All kernel sets give the same bits. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/kernels/support/support_kernels.h"

struct routed {
    struct expert_routes routes;
    void *memory;
};

static struct routed route(const struct rig *rig, const float *logits, uint32_t m,
                           const struct router_params *p)
{
    struct routed out = {.memory = NULL};
    size_t n_bytes = experts_routes_bytes(m, p->n_used, p->n_experts);
    assert_int_equal(posix_memalign(&out.memory, 256, n_bytes), 0);
    memset(out.memory, 0xEE, n_bytes);
    experts_routes_init(&out.routes, out.memory, m, p->n_used, p->n_experts);
    struct tensor t = tensor_view((void *)(uintptr_t)logits, DTYPE_F32, m, p->n_experts);
    assert_int_equal(op_router_topk(rig->stream, &out.routes, &t, p), 0);
    return out;
}

static double score_of(const float *logits, uint32_t n, uint32_t i, enum router_score score)
{
    double x = (double)logits[i], max = -INFINITY, sum = 0;
    switch (score) {
    case ROUTER_SOFTMAX:
        for (uint32_t j = 0; j < n; j++)
            max = fmax(max, (double)logits[j]);
        for (uint32_t j = 0; j < n; j++)
            sum += exp((double)logits[j] - max);
        return exp(x - max) / sum;
    case ROUTER_SIGMOID:
        return 1 / (1 + exp(-x));
    case ROUTER_SQRT_SOFTPLUS:
        return sqrt(log1p(exp(x)));
    default:
        return x;
    }
}

static double group_key(const double *keys, uint32_t size, enum router_group_score score)
{
    double best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < size; i++)
        if (keys[i] > best) {
            second = best;
            best = keys[i];
        } else if (keys[i] > second) {
            second = keys[i];
        }
    return score == ROUTER_GROUP_TOP_TWO && size > 1 ? best + second : best;
}

/* Computes the choice and the weights of a row in float64. */
static void want_row(const float *logits, const struct router_params *p, bool *chosen,
                     double *weights)
{
    uint32_t n = p->n_experts, groups = p->n_groups > 1 ? p->n_groups : 1, size = n / groups;
    double keys[EXPERTS_MAX] = {0}, sum = 0, max = -INFINITY;
    bool open[EXPERTS_MAX], kept[EXPERTS_MAX_GROUPS] = {false};
    assert(size > 0);
    for (uint32_t i = 0; i < n; i++)
        keys[i] = score_of(logits, n, i, p->score) + (p->bias != NULL ? (double)p->bias[i] : 0);
    for (uint32_t used = groups > 1 ? p->n_used_groups : 1; used > 0; used--) {
        uint32_t best = groups;
        for (uint32_t g = 0; g < groups; g++)
            if (!kept[g] &&
                (best == groups || group_key(keys + g * size, size, p->group_score) >
                                       group_key(keys + best * size, size, p->group_score)))
                best = g;
        kept[best] = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        open[i] = kept[i / size];
        chosen[i] = false;
    }
    for (uint32_t used = 0; used < p->n_used; used++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (open[i] && (best == n || keys[i] > keys[best]))
                best = i;
        open[best] = false;
        chosen[best] = true;
    }
    for (uint32_t i = 0; i < n; i++)
        if (chosen[i])
            max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = !chosen[i]                        ? 0
                     : p->score == ROUTER_TOPK_SOFTMAX ? exp((double)logits[i] - max)
                                                       : score_of(logits, n, i, p->score);
        sum += weights[i];
    }
    double divisor = p->score == ROUTER_TOPK_SOFTMAX ? sum : 1;
    if (p->renormalise)
        divisor = fmax(sum, (double)p->min_sum) + (double)p->add_sum;
    for (uint32_t i = 0; i < n; i++)
        weights[i] *= (double)p->scale / divisor;
}

static void check_order(const struct expert_routes *routes)
{
    uint32_t pair = 0;
    assert_int_equal(routes->begins[0], 0);
    for (uint32_t e = 0; e < routes->n_experts; e++) {
        assert_int_equal(routes->begins[e], pair);
        for (uint32_t row = 0; row < routes->n_rows; row++)
            for (uint32_t j = row * routes->n_used; j < (row + 1) * routes->n_used; j++)
                if (routes->ids[j] == e) {
                    assert_int_equal(routes->places[j], pair);
                    assert_int_equal(routes->rows[pair], row);
                    pair++;
                }
    }
    assert_int_equal(routes->begins[routes->n_experts], pair);
    assert_int_equal(pair, routes->n_rows * routes->n_used);
}

static void check_rows(const struct expert_routes *routes, const float *logits,
                       const struct router_params *p, const char *what)
{
    bool chosen[EXPERTS_MAX];
    double weights[EXPERTS_MAX];
    for (uint32_t row = 0; row < routes->n_rows; row++) {
        const uint32_t *ids = routes->ids + (size_t)row * p->n_used;
        want_row(logits + (size_t)row * p->n_experts, p, chosen, weights);
        for (uint32_t j = 0; j < p->n_used; j++) {
            assert_true(j == 0 || ids[j] > ids[j - 1]);
            assert_true(ids[j] < p->n_experts && chosen[ids[j]]);
            double got = (double)routes->weights[(size_t)row * p->n_used + j];
            if (!(fabs(got - weights[ids[j]]) <= 2e-6 * fabs(weights[ids[j]]) + 1e-12))
                fail_msg("%s row %u expert %u: weight %g, float64 %g", what, row, ids[j], got,
                         weights[ids[j]]);
        }
    }
}

static const struct grid_case {
    uint32_t m, n_experts, n_used, n_groups, n_used_groups;
} grid[] = {
    {1, 1, 1, 0, 0},   {3, 8, 2, 0, 0},   {1, 32, 4, 0, 0},    {5, 60, 4, 0, 0},
    {2, 128, 8, 0, 0}, {7, 257, 9, 0, 0}, {2, 1024, 64, 0, 0}, {4, 64, 6, 8, 3},
    {3, 256, 8, 8, 4}, {70, 40, 8, 0, 0}, {6, 16, 16, 0, 0},   {5, 12, 3, 12, 4},
};

static void test_every_score_and_group_matches_float64_in_every_set(void **state)
{
    (void)state;
    struct random r = {77};
    for (size_t c = 0; c < sizeof(grid) / sizeof(grid[0]); c++)
        for (unsigned way = 0; way < 32; way++) {
            const struct grid_case *g = &grid[c];
            float *logits = random_floats(&r, (size_t)g->m * g->n_experts, 0.0f),
                  *bias = random_floats(&r, g->n_experts, 0.0f);
            struct router_params p = {.score = (enum router_score)(way % 4),
                                      .n_experts = g->n_experts,
                                      .n_used = g->n_used,
                                      .bias = way & 4 ? bias : NULL,
                                      .n_groups = g->n_groups,
                                      .n_used_groups = g->n_used_groups,
                                      .group_score =
                                          way & 8 ? ROUTER_GROUP_TOP_TWO : ROUTER_GROUP_MAX,
                                      .renormalise = (way & 16) != 0,
                                      .add_sum = 1e-20f,
                                      .min_sum = 6.1e-5f,
                                      .scale = way & 16 ? 2.5f : 1.0f};
            size_t n_bytes = experts_routes_bytes(g->m, g->n_used, g->n_experts);
            void *first = NULL;
            for (const char *const *set = kernel_sets(); *set != NULL; set++)
                for (uint32_t threads = 1; threads <= 2; threads++) {
                    struct rig rig = rig_open(*set, threads);
                    struct routed got = route(&rig, logits, g->m, &p);
                    if (first == NULL) {
                        check_order(&got.routes);
                        check_rows(&got.routes, logits, &p, *set);
                        first = got.memory;
                    } else {
                        assert_same_bits(first, got.memory, n_bytes, *set);
                        free(got.memory);
                    }
                    rig_close(&rig);
                }
            free(first);
            free(logits);
            free(bias);
        }
}

static void test_equal_scores_go_to_the_lower_id(void **state)
{
    (void)state;
    enum { N = 40, USED = 5 };
    float logits[2 * N];
    for (uint32_t i = 0; i < N; i++) {
        logits[i] = 0.25f;
        logits[N + i] = i % 8 == 7 ? 1.0f : 0.5f; /* 7, 15, 23, 31, 39 are better */
    }
    for (int score = ROUTER_SOFTMAX; score <= ROUTER_SQRT_SOFTPLUS; score++) {
        struct rig rig = rig_open(kernel_sets()[0], 1);
        struct router_params p = {
            .score = (enum router_score)score, .n_experts = N, .n_used = USED, .scale = 1.0f};
        struct routed got = route(&rig, logits, 2, &p);
        for (uint32_t j = 0; j < USED; j++) {
            assert_int_equal(got.routes.ids[j], j);
            assert_int_equal(got.routes.ids[USED + j], 8 * j + 7);
        }
        free(got.memory);
        rig_close(&rig);
    }
}

/* A row with NaN or infinity chooses n_used experts too, and so do its neighbours. */
static void test_values_that_are_not_finite_choose_as_many_experts(void **state)
{
    (void)state;
    enum { M = 4, N = 24, USED = 6 };
    struct random r = {5};
    for (const char *const *set = kernel_sets(); *set != NULL; set++)
        for (int score = ROUTER_SOFTMAX; score <= ROUTER_SQRT_SOFTPLUS; score++) {
            float *logits = random_floats(&r, (size_t)M * N, 0.0f);
            for (uint32_t i = 0; i < N; i++)
                logits[i] = NAN;
            logits[N + 3] = INFINITY;
            logits[N + 9] = NAN;
            logits[2 * N] = -INFINITY;
            struct rig rig = rig_open(*set, 1);
            struct router_params p = {.score = (enum router_score)score,
                                      .n_experts = N,
                                      .n_used = USED,
                                      .n_groups = 4,
                                      .n_used_groups = 2,
                                      .group_score = ROUTER_GROUP_TOP_TWO,
                                      .scale = 1.0f};
            struct routed got = route(&rig, logits, M, &p);
            check_order(&got.routes);
            for (uint32_t j = 0; j < USED; j++)
                assert_int_equal(got.routes.ids[j], j);
            check_rows(&(struct expert_routes){.n_rows = 1,
                                               .ids = got.routes.ids + 3 * USED,
                                               .weights = got.routes.weights + 3 * USED},
                       logits + 3 * N, &p, *set);
            free(got.memory);
            free(logits);
            rig_close(&rig);
        }
}

/* Symptom: from about 17 on, all sigmoids are 1 in f32, and the lower id won over the larger logit.
 * A bias belongs to the scores, so equal scores are a tie with one. */
static void test_sigmoids_that_are_equal_are_ordered_by_logits(void **state)
{
    (void)state;
    enum { N = 4 };
    const float logits[N] = {20.0f, 30.0f, 40.0f, 25.0f}, bias[N] = {0};
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        struct router_params p = {
            .score = ROUTER_SIGMOID, .n_experts = N, .n_used = 1, .scale = 1.0f};
        struct routed by_logit = route(&rig, logits, 1, &p);
        p.bias = bias;
        struct routed by_score = route(&rig, logits, 1, &p);
        assert_int_equal(by_logit.routes.ids[0], 2);
        assert_float_equal(by_logit.routes.weights[0], 1.0f, 0);
        assert_int_equal(by_score.routes.ids[0], 0);
        free(by_logit.memory);
        free(by_score.memory);
        rig_close(&rig);
    }
}

static void test_the_scale_of_an_expert_multiplies_its_weight(void **state)
{
    (void)state;
    enum { N = 4 };
    const float logits[N] = {1.0f, 3.0f, 2.0f, 0.0f}, scales[N] = {9.0f, 0.5f, 4.0f, 9.0f};
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        struct router_params p = {.n_experts = N, .n_used = 2, .renormalise = true, .scale = 1.0f};
        struct routed plain = route(&rig, logits, 1, &p);
        p.expert_scale = scales;
        struct routed scaled = route(&rig, logits, 1, &p);
        assert_int_equal(scaled.routes.ids[0], 1);
        assert_int_equal(scaled.routes.ids[1], 2);
        assert_float_equal(scaled.routes.weights[0], plain.routes.weights[0] * 0.5f, 0);
        assert_float_equal(scaled.routes.weights[1], plain.routes.weights[1] * 4.0f, 0);
        free(plain.memory);
        free(scaled.memory);
        rig_close(&rig);
    }
}

static void test_a_wrong_shape_is_internal(void **state)
{
    (void)state;
    float logits[16] = {0};
    uint8_t memory[4096] __attribute__((aligned(256)));
    struct rig rig = rig_open("ref", 1);
    struct expert_routes routes;
    experts_routes_init(&routes, memory, 2, 2, 8);
    struct tensor t = tensor_view(logits, DTYPE_F32, 2, 8),
                  three = tensor_view(logits, DTYPE_F32, 3, 4);
    const struct router_params good = {.n_experts = 8, .n_used = 2, .scale = 1.0f};
    struct router_params p = good;
    assert_int_equal(op_router_topk(rig.stream, &routes, &t, &p), 0);
    p.n_used = 0;
    assert_int_equal(op_router_topk(rig.stream, &routes, &t, &p), STATUS_INTERNAL);
    p.n_used = 3; /* beyond the room */
    assert_int_equal(op_router_topk(rig.stream, &routes, &t, &p), STATUS_INTERNAL);
    p = good;
    p.n_experts = 7;
    assert_int_equal(op_router_topk(rig.stream, &routes, &t, &p), STATUS_INTERNAL);
    p = good;
    p.n_groups = 3;
    p.n_used_groups = 1;
    assert_int_equal(op_router_topk(rig.stream, &routes, &t, &p), STATUS_INTERNAL);
    p.n_groups = 8; /* a group of a single expert cannot give two */
    assert_int_equal(op_router_topk(rig.stream, &routes, &t, &p), STATUS_INTERNAL);
    p = good;
    p.n_experts = 4;
    assert_int_equal(op_router_topk(rig.stream, &routes, &three, &p), STATUS_INTERNAL);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_score_and_group_matches_float64_in_every_set),
        cmocka_unit_test(test_equal_scores_go_to_the_lower_id),
        cmocka_unit_test(test_values_that_are_not_finite_choose_as_many_experts),
        cmocka_unit_test(test_sigmoids_that_are_equal_are_ordered_by_logits),
        cmocka_unit_test(test_the_scale_of_an_expert_multiplies_its_weight),
        cmocka_unit_test(test_a_wrong_shape_is_internal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
