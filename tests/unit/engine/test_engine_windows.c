/* Layers with a sliding window hold only the KV blocks that they still see. No answer changes: the
 * tests have greedy answers of transformers, 64 requests at once, prefix hits and resumed requests.
 * Windows have 16 positions, and prompts have more. Plans count the blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/forward/executor.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_same.h"

enum { WINDOW = 16 };

static struct executor_plan plan_of(struct engine_config *cfg, bool splits)
{
    struct executor_plan plan;
    struct checkpoint *ckpt;
    struct error err;
    cfg->executor.max_rows = cfg->max_batch_tokens;
    cfg->executor.max_seqs = cfg->max_concurrent;
    assert_int_equal(checkpoint_open(cfg->model_path, &ckpt, &err), 0);
    int rc = splits ? engine_plan(cfg, ckpt, &plan, &err)
                    : executor_plan(ckpt, &cfg->executor, &plan, &err);
    if (rc)
        fail_msg("%s", err.message);
    checkpoint_close(ckpt);
    return plan;
}

/* A pool of 2,048 tokens for 4 sequences. */
static struct engine_config small_config(const char *name)
{
    struct engine_config cfg = run_config(name);
    cfg.executor.kv_tokens = 2048;
    cfg.executor.kv_block_size = 8;
    cfg.max_concurrent = 4;
    cfg.max_batch_tokens = 32;
    cfg.prefill_chunk_tokens = 13;
    return cfg;
}

/* Blocks of 4 windows: each has ceil(15 / 8) blocks and 3 more. The step's rows take 4. A quarter
 * more is for prefixes. */
enum { N_WINDOW_BLOCKS = (4 * (2 + 3) + 4) * 5 / 4 };

/* --- plans --- */

/* The facts of the model name the windows, for estimates before a load. */
static void check_info(const char *name, uint32_t n_layers, uint32_t n_windowed)
{
    struct engine_config cfg = small_config(name);
    struct checkpoint *ckpt;
    struct model_info info;
    struct error err;
    assert_int_equal(checkpoint_open(cfg.model_path, &ckpt, &err), 0);
    assert_int_equal(engine_read_model_info(ckpt, &info, &err), 0);
    assert_int_equal(info.window_tokens, n_windowed ? WINDOW : 0);
    if (n_layers)
        assert_int_equal(info.window_elements * n_layers, info.kv_elements * n_windowed);
    checkpoint_close(ckpt);
}

static void test_plan_counts_windows_by_their_blocks(void **state)
{
    char llama4[512]; /* the folder: chunks of files are longer than its context */
    snprintf(llama4, sizeof(llama4), "%s/tests/golden/tiny/llama4", golden_source_dir());
    const struct {
        const char *name;
        uint32_t n_layers, n_windowed;
    } models[] = {
        {"gemma3", 6, 5}, {"gpt_oss", 2, 1}, {"exaone4", 4, 3}, {llama4, 4, 3}, {"qwen3", 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct engine_config cfg = small_config(models[i].name);
        struct executor_plan with = plan_of(&cfg, true), without = plan_of(&cfg, false);
        uint64_t n_windows = models[i].n_windowed ? N_WINDOW_BLOCKS : 0;
        print_message("%s: KV cache %llu bytes, without windows %llu\n", models[i].name,
                      (unsigned long long)with.kv_bytes, (unsigned long long)without.kv_bytes);
        assert_int_equal(with.n_blocks, 256);
        assert_int_equal(with.n_window_blocks, n_windows);
        assert_int_equal(without.n_window_blocks, 0);
        check_info(models[i].name, models[i].n_layers, models[i].n_windowed);
        if (!n_windows) {
            assert_int_equal(with.kv_bytes, without.kv_bytes);
            continue;
        }
        assert_int_equal(with.window_reach, WINDOW);
        assert_int_equal(with.windows_are_chunks, models[i].name == llama4);
        uint64_t layer_bytes = without.kv_bytes / models[i].n_layers / 256;
        assert_int_equal(with.kv_bytes,
                         layer_bytes * (models[i].n_windowed * n_windows +
                                        (models[i].n_layers - models[i].n_windowed) * 256));
        struct engine *engine = run_open(&cfg);
        assert_int_equal(engine_memory(engine)->kv_bytes, with.kv_bytes);
        run_close(engine);
    }
}

/* Twice the context takes twice the memory in the layers without a window alone. */
static void test_tokens_that_fit_grow_by_the_other_layers(void **state)
{
    struct engine_config cfg = small_config("gemma3");
    char path[512];
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/mistral", golden_source_dir());
    struct executor_plan plan = plan_of(&cfg, true);
    uint64_t bs = cfg.executor.kv_block_size, most = UINT64_MAX;
    assert_int_equal(executor_kv_tokens(&plan, plan.kv_bytes, most), 2048);
    assert_int_equal(executor_kv_tokens(&plan, plan.kv_bytes + 100 * plan.kv_block_bytes, most),
                     2048 + 100 * bs);
    assert_int_equal(
        executor_kv_tokens(&plan, 10 * (plan.kv_block_bytes + plan.window_block_bytes), most),
        10 * bs);
    assert_int_equal(executor_kv_tokens(&plan, plan.kv_bytes, 1000), 1000);
    cfg.executor.kv_tokens = 10 * bs; /* fewer than the windows could take: one pool for all */
    plan = plan_of(&cfg, true);
    assert_int_equal(plan.n_window_blocks, 0);
    assert_int_equal(plan.kv_bytes, 10 * (plan.kv_block_bytes + plan.window_block_bytes));
    cfg = small_config(path); /* all layers have a window */
    plan = plan_of(&cfg, true);
    assert_int_equal(plan.kv_block_bytes, 0);
    assert_int_equal(plan.kv_bytes, N_WINDOW_BLOCKS * plan.window_block_bytes);
    assert_int_equal(executor_kv_tokens(&plan, 2 * plan.kv_bytes, 12345), 12345);
}

/* --- answers --- */

struct answer {
    char name[64];
    uint32_t n_prompt, n_steps, *ids; /* prompt, then answer */
};

static void read_answer(struct golden *g, struct answer *a)
{
    uint32_t n_name = golden_u32(g);
    a->n_prompt = golden_u32(g);
    a->n_steps = golden_u32(g);
    assert_true(n_name < sizeof(a->name));
    memcpy(a->name, golden_take(g, n_name), n_name);
    a->name[n_name] = '\0';
    a->ids = golden_copy(g, a->n_prompt + a->n_steps);
}

static bool has_windows(const char *name)
{
    static const char *const names[] = {
        "gemma3", "gpt_oss", "exaone4", "cohere2",      "gemma2",
        "mimo2",  "olmo3",   "mistral", "qwen2_window", "starcoder2_window"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* The prompt, then the prompt with the first tokens of the answer: a hit of the prefix cache. Then
 * the same as a resumed request. */
static void check_answer(const struct answer *a)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", golden_source_dir(), a->name);
    struct engine_config cfg = small_config(path);
    cfg.executor.kernels = "f32";
    cfg.executor.kv_dtype = DTYPE_F32;
    struct engine *engine = run_open(&cfg);
    assert_int_equal(engine_memory(engine)->n_window_blocks, N_WINDOW_BLOCKS);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t known = i ? 18 : 0;
        struct run_result result = {0};
        struct engine_resume resume = {.ids = a->ids + a->n_prompt, .n_ids = known};
        struct engine_request req = run_request(a->ids, a->n_prompt + (i == 1 ? known : 0),
                                                a->n_steps - (i == 1 ? known : 0));
        if (i == 2)
            req.resume = &resume;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        const struct run_choice *c = &result.choices[0];
        assert_int_equal(c->n_ids, a->n_steps - known);
        for (uint32_t k = 0; k < c->n_ids; k++)
            if (c->ids[k] != a->ids[a->n_prompt + known + k])
                fail_msg("%s, run %u: token %u is %u, want %u", a->name, i, k, c->ids[k],
                         a->ids[a->n_prompt + known + k]);
        assert_true(i == 0 || result.usage.n_cached_tokens > 0);
        run_result_fini(&result);
    }
    struct engine_stats s = run_stats(engine);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    run_close(engine);
}

static void test_greedy_answers_are_those_of_transformers(void **state)
{
    struct golden g;
    uint32_t n_checked = 0;
    (void)state;
    golden_open(&g, "greedy.bin", "SLGT");
    for (uint32_t n = golden_u32(&g); n > 0; n--) {
        struct answer a;
        read_answer(&g, &a);
        if (has_windows(a.name)) {
            check_answer(&a);
            n_checked++;
        }
        free(a.ids);
    }
    golden_close(&g);
    assert_int_equal(n_checked, 10);
}

static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 8192, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"tp 2, chunks of 5", 2, 2, 8, 4096, 5, 32, 16, false, false, 0.0, 0, 0, NULL, 0},
    {"small pool", 1, 2, 4, 320, 32, 64, 5, false, true, 0.0, 0, 0, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
    {"draft model", 1, 2, 8, 4096, 32, 64, 16, false, false, 0.0, 0, 8, "q8_0", 0},
};

/* Each variant has a pool for windows. */
static void check_same(const char *name, enum dtype kv_dtype)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        struct engine_config cfg = small_config(name);
        cfg.executor.kv_block_size = variants[i].block_size;
        cfg.executor.kv_tokens = variants[i].kv_tokens;
        cfg.max_batch_tokens = variants[i].max_rows;
        cfg.max_concurrent = variants[i].max_concurrent;
        struct executor_plan plan = plan_of(&cfg, true);
        assert_true(plan.n_window_blocks > 0 && plan.n_window_blocks < plan.n_blocks);
    }
    same_check(name, kv_dtype, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

static void test_64_alone_equal_64_at_once_exaone4(void **state)
{
    (void)state;
    check_same("exaone4", DTYPE_BF16);
}

static void test_64_alone_equal_64_at_once_gpt_oss(void **state)
{
    (void)state;
    check_same("gpt_oss", DTYPE_I8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_counts_windows_by_their_blocks),
        cmocka_unit_test(test_tokens_that_fit_grow_by_the_other_layers),
        cmocka_unit_test(test_greedy_answers_are_those_of_transformers),
        cmocka_unit_test(test_64_alone_equal_64_at_once_exaone4),
        cmocka_unit_test(test_64_alone_equal_64_at_once_gpt_oss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
