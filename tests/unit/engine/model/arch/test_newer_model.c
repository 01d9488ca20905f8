/* Tests of parts that Gemma 4 and Llama 4 alone have. Layers may lack a cache of their own, and
 * GGUF files leave numbers out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/engine_stats.h"
#include "engine/format/checkpoint.h"
#include "engine/model/arch/arch.h"
#include "engine/model/model.h"
#include "tests/unit/engine/support/support_observe.h"

enum { MAX_ROWS = 96 };

/* Opens the golden with this table; NULL: the file's own. */
static void open_model(struct checkpoint *ckpt, const struct arch *arch, struct model *model)
{
    struct error err = {0};
    if (model_init(model, ckpt, arch, &err) != 0)
        fail_msg("%s", err.message);
}

/* Two layers with a window have 2 heads of 16 elements, a full one has a head of 32. The last two
 * layers read the cache of layers 1 and 2. */
static void test_layers_that_share_kv_add_nothing_to_the_cache(void **state)
{
    static const char *const goldens[] = {"gemma4", "gemma4.gguf"};
    static const uint32_t sources[] = {0, 1, 2, 1, 2};
    (void)state;
    for (size_t g = 0; g < sizeof(goldens) / sizeof(goldens[0]); g++) {
        struct checkpoint *ckpt = observe_open(goldens[g]);
        struct model model = {0};
        struct model_info info;
        struct error err = {0};
        assert_int_equal(engine_read_model_info(ckpt, &info, &err), 0);
        assert_int_equal(info.kv_elements, 2 * 2 * (16 + 16) + 32 + 32);
        open_model(ckpt, NULL, &model);
        for (uint32_t i = 0; i < model.shape.n_layers; i++) {
            assert_int_equal(model.shape.layers[i].kv_source, sources[i]);
            assert_int_equal(model.shape.layers[i].ffn_dim, i < 3 ? 34 : 68);
        }
        model_fini(&model);
        checkpoint_close(ckpt);
    }
}

static void test_llama4_file_has_the_numbers_of_published_models(void **state)
{
    struct checkpoint *ckpt = observe_open("llama4_8192.gguf");
    struct model model = {0};
    (void)state;
    open_model(ckpt, NULL, &model);
    for (uint32_t i = 0; i < model.shape.n_layers; i++) {
        const struct model_layer *layer = &model.shape.layers[i];
        assert_int_equal(layer->chunk, i == 3 ? 0 : 8192);
        assert_int_equal(layer->mixer->rope, i == 3 ? ARCH_NO_ROPE : 0);
        assert_int_equal(layer->ffn->body, i % 2 ? ARCH_FFN_EXPERTS : ARCH_FFN_DENSE);
    }
    assert_true(model.shape.has_bare_norms);
    assert_float_equal(model.shape.temperature, 0.1, 1e-9);
    assert_float_equal(model.shape.temperature_length, 8192, 0);
    assert_int_equal(model.shape.temperature_offset, 1);
    model_fini(&model);
    checkpoint_close(ckpt);
}

/* The published model with 128 experts has no norms of queries and keys. Here, that with 4. */
static void test_llama4_with_a_number_of_experts_has_no_norms(void **state)
{
    struct checkpoint *ckpt = observe_open("llama4_8192.gguf");
    struct arch arch = arch_llama4;
    struct arch_source merged, source;
    struct arch_param params[MAX_ROWS];
    struct model model = {0};
    struct observation with, without;
    (void)state;
    assert_true(arch_source_init(&merged, &arch_llama4.sources[0]));
    assert_true(merged.n_params <= MAX_ROWS);
    memcpy(params, merged.params, merged.n_params * sizeof(params[0]));
    for (uint32_t i = 0; i < merged.n_params; i++)
        if (params[i].id == ARCH_PARAM_NO_BARE_NORMS_EXPERTS)
            params[i].fallback = 4;
    source = merged;
    source.params = params;
    arch.sources = &source;
    arch.n_sources = 1;
    open_model(ckpt, &arch, &model);
    assert_false(model.shape.has_bare_norms);
    model_fini(&model);
    observe(&arch_llama4, ckpt, &with);
    observe(&arch, ckpt, &without);
    assert_string_equal(without.error, "");
    assert_false(observe_same(&with, &without));
    arch_source_fini(&merged);
    checkpoint_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_that_share_kv_add_nothing_to_the_cache),
        cmocka_unit_test(test_llama4_file_has_the_numbers_of_published_models),
        cmocka_unit_test(test_llama4_with_a_number_of_experts_has_no_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
