/* Tests that the ops of a layer of experts allocate no memory, for one row and for many. */
#include <string.h>

#include "tests/support/count_allocations.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { HIDDEN = 64, FF = 96, N = 8, USED = 3, MAX_M = 40 };

struct world {
    struct rig rig;
    struct weight *gate[N], *up[N], *down[N];
    struct experts experts;
    struct expert_routes routes;
    struct expert_work work;
    struct segments segments;
    float *x, *y, *logits;
};

static struct weight *random_weight(const struct rig *rig, struct random *r,
                                    struct weight_desc desc)
{
    uint8_t *raw = random_rows(r, desc.source, desc.n_rows, desc.k_total);
    struct weight *w = pack_weight(rig->ops, &desc, raw);
    free(raw);
    return w;
}

static void open_world(struct world *w, const char *set, enum dtype type)
{
    struct random r = {2};
    uint32_t n_pairs = experts_max_pairs(MAX_M);
    struct weight_desc down = row_desc(type, HIDDEN, FF, 1, 0);
    *w = (struct world){.rig = rig_open(set, 2), .segments = down.k_segments};
    for (int e = 0; e < N; e++) {
        w->gate[e] = random_weight(&w->rig, &r, column_desc(type, FF, HIDDEN));
        w->up[e] = random_weight(&w->rig, &r, column_desc(type, FF, HIDDEN));
        w->down[e] = random_weight(&w->rig, &r, down);
    }
    w->experts = (struct experts){.n = N,
                                  .gate = (const struct weight *const *)w->gate,
                                  .up = (const struct weight *const *)w->up,
                                  .down = (const struct weight *const *)w->down,
                                  .segments = &w->segments};
    void *memory = aligned_alloc(256, experts_routes_bytes(MAX_M, USED, N));
    experts_routes_init(&w->routes, memory, MAX_M, USED, N);
    w->work = (struct expert_work){
        .act = make_act(&w->rig, n_pairs, FF),
        .rows = tensor_view(poisoned((size_t)n_pairs * HIDDEN), DTYPE_F32, n_pairs, HIDDEN),
        .gate = tensor_view(poisoned((size_t)n_pairs * FF), DTYPE_F32, n_pairs, FF),
        .up = tensor_view(poisoned((size_t)n_pairs * FF), DTYPE_F32, n_pairs, FF)};
    w->x = random_floats(&r, (size_t)MAX_M * HIDDEN, 0.02f);
    w->y = poisoned((size_t)MAX_M * HIDDEN);
    w->logits = random_floats(&r, (size_t)MAX_M * N, 0.0f);
}

static void close_world(struct world *w)
{
    for (int e = 0; e < N; e++) {
        free(w->gate[e]);
        free(w->up[e]);
        free(w->down[e]);
    }
    w->rig.ops->act_destroy(w->work.act);
    free(w->routes.ids);
    free(w->work.rows.data);
    free(w->work.gate.data);
    free(w->work.up.data);
    free(w->x);
    free(w->y);
    free(w->logits);
    rig_close(&w->rig);
}

static void run(struct world *w, uint32_t m)
{
    const struct router_params params = {.n_experts = N, .n_used = USED, .scale = 1.0f};
    struct tensor x = tensor_view(w->x, DTYPE_F32, m, HIDDEN),
                  y = tensor_view(w->y, DTYPE_F32, m, HIDDEN),
                  logits = tensor_view(w->logits, DTYPE_F32, m, N);
    assert_int_equal(op_router_topk(w->rig.stream, &w->routes, &logits, &params), 0);
    assert_int_equal(op_experts(w->rig.stream, &y, &x, &w->routes, &w->experts, &w->work, NULL), 0);
}

static void test_a_layer_of_experts_allocates_nothing(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q4_1, DTYPE_MXFP4};
    (void)state;
    for (const char *const *set = linear_sets(); *set != NULL; set++)
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
            struct world w;
            open_world(&w, *set, types[t]);
            run(&w, MAX_M); /* threads have begun */
            unsigned before = atomic_load(&n_allocations);
            run(&w, 1);
            run(&w, MAX_M);
            assert_int_equal(atomic_load(&n_allocations), before);
            close_world(&w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layer_of_experts_allocates_nothing),
    };
    start_counting();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
