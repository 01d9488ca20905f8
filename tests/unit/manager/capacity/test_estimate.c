/* The size of a KV cache by a model's facts, before its worker has planned. */
#include <string.h>

#include "manager/capacity/estimate.h"
#include "tests/unit/base/support_cmocka.h"

/* Every layer was estimated with the largest keys of the model, and with values as wide as keys. */
static void test_a_cache_has_the_widths_of_the_model_s_layers(void **state)
{
    static char f32[] = "f32", int8[] = "int8", f16[] = "";
    static const struct {
        uint64_t elements, kv_tokens, kv_bytes;
        char *type;
        uint64_t expected;
    } rows[] = {
        {120, 10, 0, f32, 4800}, {120, 10, 0, f16, 2400}, {120, 10, 0, int8, 1200},
        {0, 10, 0, f16, 3840}, /* facts of an older release: 2 layers, 2 heads of 24 */
        {120, 0, 77, f16, 77},   {120, 0, 0, f16, 0},     {120, UINT64_MAX / 2, 0, f16, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pb_info info = SLUICE__V1__MODEL_INFO__INIT;
        pb_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        info.n_layers = info.n_kv_heads = 2;
        info.head_dim = 24;
        info.kv_elements_per_token = rows[i].elements;
        config.kv_dtype = rows[i].type;
        config.has_kv_tokens = rows[i].kv_tokens > 0;
        config.kv_tokens = rows[i].kv_tokens;
        config.has_kv_bytes = rows[i].kv_bytes > 0;
        config.kv_bytes = rows[i].kv_bytes;
        uint64_t n_bytes = estimate_kv_bytes(&info, &config);
        if (n_bytes != rows[i].expected)
            fail_msg("row %zu: %llu bytes", i, (unsigned long long)n_bytes);
    }
}

/* Symptom: layers with a window were promised memory for the whole context. */
static void test_windows_count_for_all_sequences(void **state)
{
    static char f16[] = "";
    static const struct {
        uint64_t elements, windowed, kv_tokens;
        uint32_t n_seqs, n_rows;
        uint64_t expected;
    } rows[] = {
        {120, 0, 100000, 4, 64, 2ull * 120 * 100000},
        {120, 100, 100000, 4, 64, 2ull * (20 * 100000 + 100 * (4 * (128 + 96) + 64) * 5 / 4)},
        {120, 120, 100000, 4, 64, 2ull * 120 * (4 * (128 + 96) + 64) * 5 / 4},
        {120, 100, 500, 4, 64, 2ull * 120 * 500}, /* the windows hold more than that */
        {120, 100, 100000, 0, 0, 2ull * (20 * 100000 + 100 * (256 * (128 + 96) + 512) * 5 / 4)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pb_info info = SLUICE__V1__MODEL_INFO__INIT;
        pb_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        info.kv_elements_per_token = rows[i].elements;
        info.window_elements_per_token = rows[i].windowed;
        info.window_tokens = 128;
        config.kv_dtype = f16;
        config.has_kv_tokens = true;
        config.kv_tokens = rows[i].kv_tokens;
        config.has_max_concurrent_requests = rows[i].n_seqs > 0;
        config.max_concurrent_requests = rows[i].n_seqs;
        config.has_max_batch_tokens = rows[i].n_rows > 0;
        config.max_batch_tokens = rows[i].n_rows;
        uint64_t n_bytes = estimate_kv_bytes(&info, &config);
        if (n_bytes != rows[i].expected)
            fail_msg("row %zu: %llu bytes", i, (unsigned long long)n_bytes);
    }
}

/* Symptom: a model with recurrent layers was promised no memory for its states. */
static void test_states_count_by_slots(void **state)
{
    static const struct {
        uint64_t per_sequence;
        uint32_t slots;
        uint64_t expected;
    } rows[] = {{0, 0, 0}, {0, 8, 0}, {1000, 0, 1000}, {1000, 8, 8000}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pb_info info = SLUICE__V1__MODEL_INFO__INIT;
        pb_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        info.state_bytes_per_sequence = rows[i].per_sequence;
        config.has_state_slots = rows[i].slots > 0;
        config.state_slots = rows[i].slots;
        assert_int_equal(estimate_state_bytes(&info, &config), rows[i].expected);
    }
}

/* Symptom: Mamba-2 with a number of KV tokens counted as a load without a size, so no memory was
 * promised for it. */
static void test_models_without_a_cache_have_a_size(void **state)
{
    static const struct {
        uint64_t elements, state_bytes, kv_tokens, kv_bytes;
        uint32_t slots;
        bool has_size;
    } rows[] = {
        {0, 1000, 4096, 0, 0, true}, {0, 1000, 0, 0, 8, true},    {0, 1000, 0, 0, 0, false},
        {0, 1000, 0, 77, 0, false},  {120, 1000, 0, 0, 8, false}, {120, 1000, 4096, 0, 8, true},
        {120, 0, 4096, 0, 0, true},  {120, 0, 0, 77, 0, true},    {120, 0, 0, 0, 0, false},
        {0, 0, 4096, 0, 0, true}, /* facts of an older release */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pb_info info = SLUICE__V1__MODEL_INFO__INIT;
        pb_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        info.n_layers = 2;
        info.n_kv_heads = rows[i].elements || !rows[i].state_bytes ? 2 : 0;
        info.head_dim = 24;
        info.kv_elements_per_token = rows[i].elements;
        info.state_bytes_per_sequence = rows[i].state_bytes;
        config.has_kv_tokens = rows[i].kv_tokens > 0;
        config.kv_tokens = rows[i].kv_tokens;
        config.has_kv_bytes = rows[i].kv_bytes > 0;
        config.kv_bytes = rows[i].kv_bytes;
        config.has_state_slots = rows[i].slots > 0;
        config.state_slots = rows[i].slots;
        if (estimate_has_size(&info, &config) != rows[i].has_size)
            fail_msg("row %zu: want %d", i, rows[i].has_size);
        assert_true(rows[i].elements || !rows[i].state_bytes ||
                    estimate_kv_bytes(&info, &config) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_count_by_slots),
        cmocka_unit_test(test_models_without_a_cache_have_a_size),
        cmocka_unit_test(test_windows_count_for_all_sequences),
        cmocka_unit_test(test_a_cache_has_the_widths_of_the_model_s_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
