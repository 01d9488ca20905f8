/* 64 requests alone give the same tokens as the same 64 at once, for a model with recurrent layers.
 * Snapshots, choices, drafts, preemption and ranks change nothing. Each turn of a chat computes its
 * new tokens and at most one distance between two snapshots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_same.h"

static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"chunks of 5", 1, 1, 32, 4096, 5, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"small pool", 1, 2, 4, 320, 32, 64, 64, true, true, 0.0, 0, 0, NULL, 0},
    {"few slots", 1, 2, 8, 2048, 40, 64, 6, true, false, 0.0, 0, 0, NULL, 0},
    {"drafts", 1, 2, 16, 4096, 32, 128, 16, false, false, 0.0, 0, 16, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
};

enum { N_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

/* Runs the first n variants. */
static void check(const char *golden, size_t n)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", golden_source_dir(), golden);
    same_check(path, DTYPE_BF16, variants, n, 44);
}

static void test_64_alone_equal_64_at_once_delta_net(void **state)
{
    (void)state;
    check("qwen35", N_VARIANTS);
}

/* A model without attention takes no KV. Its blocks are numbers alone. */
static void test_64_alone_equal_64_at_once_without_attention(void **state)
{
    (void)state;
    check("mamba2", N_VARIANTS);
}

static void test_64_alone_equal_64_at_once_mamba_and_experts(void **state)
{
    (void)state;
    check("granitehybrid_moe", N_VARIANTS);
}

static void test_64_alone_equal_64_at_once_short_convolution(void **state)
{
    (void)state;
    /* its drafts end requests so early that the small pool of the last variant may suffice */
    check("lfm2", N_VARIANTS - 1);
}

/* --- chats --- */

/* A turn's prompt is all tokens before it and some new ones. On a GPU no generated token is part of
 * a cached prefix (paths P and D). So the turn computes the answer before it again. */
struct turn {
    uint32_t n_new, n_answer;
};

static void check_chat(const char *golden)
{
    static const struct turn turns[] = {{40, 57}, {3, 40}, {17, 64}, {1, 9}, {6, 2}};
    enum { DISTANCE = 32, MAX_IDS = 256 };
    struct engine_config cfg = run_config(golden);
    cfg.snapshot_blocks = DISTANCE / 16; /* run_config() has blocks of 16 */
    struct engine *engine = run_open(&cfg);
    uint32_t ids[MAX_IDS], fresh[MAX_IDS], n = 0;
    run_random_prompt(5, fresh, MAX_IDS, 66);
    for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++) {
        const struct turn *turn = &turns[i];
        struct run_result result = {0};
        memcpy(ids + n, fresh + n, turn->n_new * sizeof(*ids));
        n += turn->n_new;
        struct engine_request request = run_request(ids, n, turn->n_answer);
        uint64_t before = run_stats(engine).n_prefill_rows;
        run_submit(engine, &request, &result);
        run_wait(engine, &result, 1);
        run_wait_idle(engine);
        uint64_t n_rows = run_stats(engine).n_prefill_rows - before;
        uint32_t n_cached = result.usage.n_cached_tokens;
        uint32_t most = turn->n_new + (i ? DISTANCE : 0);
        if (i && getenv("SLUICE_TEST_DEVICE"))
            most += turns[i - 1].n_answer;
        if (n_rows != n - n_cached || n_rows > most)
            fail_msg("%s, turn %zu: %llu rows for %u new tokens of %u; %u were cached", golden, i,
                     (unsigned long long)n_rows, turn->n_new, n, n_cached);
        assert_int_equal(result.choices[0].n_ids, turn->n_answer);
        assert_true(n + turn->n_answer <= MAX_IDS);
        memcpy(ids + n, result.choices[0].ids, turn->n_answer * sizeof(*ids));
        n += turn->n_answer;
        run_result_fini(&result);
    }
    run_close(engine);
}

static void test_a_turn_costs_its_new_tokens_and_at_most_one_distance(void **state)
{
    (void)state;
    check_chat("qwen35");
    check_chat("mamba2");
    check_chat("lfm2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_at_once_delta_net),
        cmocka_unit_test(test_64_alone_equal_64_at_once_without_attention),
        cmocka_unit_test(test_64_alone_equal_64_at_once_mamba_and_experts),
        cmocka_unit_test(test_64_alone_equal_64_at_once_short_convolution),
        cmocka_unit_test(test_a_turn_costs_its_new_tokens_and_at_most_one_distance),
    };
    if (getenv("SLUICE_TEST_FILTER")) /* tests/gpu */
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
