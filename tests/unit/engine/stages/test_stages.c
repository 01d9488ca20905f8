/* Tests of the division of layers into stages. Costs are balanced, and layers that belong together
 * stay together. The errors name the layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/forward/stages.h"
#include "engine/model/model.h"
#include "engine/model/plan.h"

enum { N_LAYERS = 12, N_PLACES = N_LAYERS + 2 };

static struct model_layer layers[N_LAYERS];
static struct layer_split splits[N_LAYERS];
static struct weight_place places[N_PLACES];

/* A model whose layer i has bytes[i] bytes and as many multiplications, and an embedding and an
 * output matrix of `ends` each. */
static void make(struct model *model, struct rank_plan *plan, const uint32_t *bytes, uint32_t ends)
{
    for (uint32_t i = 0; i < N_LAYERS; i++)
        layers[i] = (struct model_layer){.kv_source = i};
    for (uint32_t i = 0; i < N_PLACES; i++) {
        uint32_t n = i < N_LAYERS ? bytes[i] : ends;
        places[i] = (struct weight_place){
            .slot = i < N_LAYERS ? ARCH_FFN_UP : ARCH_TOKEN_EMBD,
            .layer = i < N_LAYERS ? i : 0,
            .n_bytes = n,
            .desc = {.role = WEIGHT_LINEAR_COLUMN, .n_rows = n, .k_total = 1}};
    }
    places[N_LAYERS].desc.role = WEIGHT_EMBEDDING;
    places[N_LAYERS + 1].slot = ARCH_OUTPUT;
    *model = (struct model){.shape = {.n_layers = N_LAYERS, .layers = layers}};
    *plan = (struct rank_plan){
        .split = {.n_layers = N_LAYERS, .layers = splits}, .places = places, .n_places = N_PLACES};
}

static void expect(const struct model *model, const struct rank_plan *plan, uint32_t n,
                   const uint32_t *wanted)
{
    uint32_t bounds[STAGES_MAX + 1];
    struct error err;
    if (stages_split(plan, model, n, bounds, &err) != 0)
        fail_msg("%s", err.message);
    for (uint32_t s = 0; s <= n; s++)
        assert_int_equal(bounds[s], wanted[s]);
}

static void test_equal_layers_are_divided_equally(void **state)
{
    const uint32_t bytes[N_LAYERS] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    struct model model;
    struct rank_plan plan;
    (void)state;
    make(&model, &plan, bytes, 0);
    expect(&model, &plan, 1, (const uint32_t[]){0, 12});
    expect(&model, &plan, 2, (const uint32_t[]){0, 6, 12});
    expect(&model, &plan, 4, (const uint32_t[]){0, 3, 6, 9, 12});
}

/* The output matrix multiplies, the embedding does not: the last stage gets fewer layers. */
static void test_ends_count_for_their_stages(void **state)
{
    const uint32_t bytes[N_LAYERS] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    struct model model;
    struct rank_plan plan;
    (void)state;
    make(&model, &plan, bytes, 16);
    /* shares of 80 bytes and 64 multiplications: 7 layers and the embedding, 5 and the output */
    expect(&model, &plan, 2, (const uint32_t[]){0, 7, 12});
}

static void test_heavy_layers_have_a_stage_of_their_own(void **state)
{
    const uint32_t bytes[N_LAYERS] = {1, 1, 1, 1, 1, 20, 1, 1, 1, 1, 1, 1};
    struct model model;
    struct rank_plan plan;
    uint32_t bounds[STAGES_MAX + 1];
    struct error err;
    (void)state;
    make(&model, &plan, bytes, 0);
    assert_int_equal(stages_split(&plan, &model, 3, bounds, &err), 0);
    assert_int_equal(bounds[1], 5);
    assert_int_equal(bounds[2], 6);
}

/* Layers 6 to 11 read the K and V of layers 4 and 5, so no cut is behind layer 4. */
static void test_layers_that_share_kv_stay_together(void **state)
{
    const uint32_t bytes[N_LAYERS] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    struct model model;
    struct rank_plan plan;
    uint32_t bounds[STAGES_MAX + 1];
    struct error err;
    (void)state;
    make(&model, &plan, bytes, 0);
    for (uint32_t i = 6; i < N_LAYERS; i++)
        layers[i].kv_source = 4 + i % 2;
    const struct checkpoint_tensor *none[N_ARCH_SLOTS * N_LAYERS] = {NULL};
    model.tensors = none;
    expect(&model, &plan, 2, (const uint32_t[]){0, 4, 12});
    expect(&model, &plan, 5, (const uint32_t[]){0, 1, 2, 3, 4, 12});
    assert_int_equal(stages_split(&plan, &model, 6, bounds, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "pp");
    assert_non_null(strstr(err.message, "at most 5"));
    assert_non_null(strstr(err.message, "layer 11"));
    assert_non_null(strstr(err.message, "layer 5"));
}

static void test_more_stages_than_layers_refused(void **state)
{
    const uint32_t bytes[N_LAYERS] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    struct model model;
    struct rank_plan plan;
    uint32_t bounds[STAGES_MAX + 1];
    struct error err;
    (void)state;
    make(&model, &plan, bytes, 0);
    assert_int_equal(stages_split(&plan, &model, STAGES_MAX + 1, bounds, &err),
                     STATUS_INVALID_ARGUMENT);
    model.shape.n_layers = plan.split.n_layers = 3;
    plan.n_places = 3;
    assert_int_equal(stages_split(&plan, &model, 4, bounds, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "pp");
    assert_non_null(strstr(err.message, "3 layers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_layers_are_divided_equally),
        cmocka_unit_test(test_ends_count_for_their_stages),
        cmocka_unit_test(test_heavy_layers_have_a_stage_of_their_own),
        cmocka_unit_test(test_layers_that_share_kv_stay_together),
        cmocka_unit_test(test_more_stages_than_layers_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
