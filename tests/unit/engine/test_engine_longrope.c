/* Longrope in the engine. The positions of a sequence within the original context (32 tokens) are
 * rotated by the short table of frequencies. A longer sequence uses the long table for all
 * positions. Prompts and answers cross the border. Answers equal those of transformers, and those
 * of undisturbed requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_same.h"

enum { BORDER = 32, BLOCK_TOKENS = 16, MAX_ANSWERS = 8, PATH_BYTES = 512 };

/* --- transformers --- */

struct answer {
    uint32_t n_prompt, n_ids;
    uint32_t *ids; /* prompt and greedy answer */
};

static struct answer answers[MAX_ANSWERS];
static uint32_t n_answers;

static int load_answers(void **state)
{
    struct golden g;
    (void)state;
    golden_open(&g, "tiny/phi3_long_answers.bin", "SLTG");
    n_answers = golden_u32(&g);
    assert_in_range(n_answers, 1, MAX_ANSWERS);
    for (uint32_t i = 0; i < n_answers; i++) {
        answers[i].n_prompt = golden_u32(&g);
        answers[i].n_ids = golden_u32(&g);
        answers[i].ids = golden_copy(&g, answers[i].n_ids);
    }
    golden_close(&g);
    return 0;
}

static int free_answers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_answers; i++)
        free(answers[i].ids);
    return 0;
}

static struct engine_request request_of(const struct answer *a)
{
    struct engine_request req = run_request(a->ids, a->n_prompt, a->n_ids - a->n_prompt);
    req.stopping.ignore_eos = true;
    return req;
}

/* The answers that begin within the original context and end behind it. */
static uint32_t count_crossings(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_answers; i++)
        n += answers[i].n_prompt <= BORDER && answers[i].n_ids > BORDER + 1;
    return n;
}

/* Runs all prompts at once, twice: the second time with blocks from the prefix cache. */
static void check_answers(struct engine_config *cfg, const char *what)
{
    struct engine *engine = run_open(cfg);
    struct engine_stats stats;
    for (int again = 0; again < 2; again++) {
        struct run_result results[MAX_ANSWERS];
        for (uint32_t i = 0; i < n_answers; i++) {
            struct engine_request req = request_of(&answers[i]);
            run_submit(engine, &req, &results[i]);
        }
        run_wait(engine, results, n_answers);
        for (uint32_t i = 0; i < n_answers; i++) {
            const struct run_choice *c = &results[i].choices[0];
            uint32_t n = answers[i].n_ids - answers[i].n_prompt;
            if (c->n_ids != n ||
                memcmp(c->ids, answers[i].ids + answers[i].n_prompt, n * sizeof(*c->ids)) != 0)
                fail_msg("%s, prompt of %u, run %d: not the answer of transformers", what,
                         answers[i].n_prompt, again + 1);
            run_result_fini(&results[i]);
        }
    }
    engine_get_stats(engine, &stats);
    if (!stats.n_preemptions) /* a sequence that is computed again needs no crossing */
        assert_int_equal(stats.n_rope_crossings, 2 * count_crossings());
    run_close(engine);
}

static void test_answers_equal_those_of_transformers(void **state)
{
    static const struct {
        const char *name;
        uint32_t tp, chunk, kv_tokens, draft_tokens;
        bool by_model;
    } rows[] = {{"plain", 1, 32, 4096, 0, false},          {"tp 2", 2, 32, 4096, 0, false},
                {"chunks of 5", 1, 5, 4096, 0, false},     {"small pool", 1, 32, 160, 0, false},
                {"small pool, tp 2", 2, 7, 160, 0, false}, {"drafts", 1, 32, 4096, 8, false},
                {"drafts by itself", 1, 32, 4096, 8, true}};
    char folder[PATH_BYTES], draft[PATH_BYTES];
    (void)state;
    snprintf(folder, sizeof(folder), "%s/tests/golden/tiny/phi3_long", golden_source_dir());
    snprintf(draft, sizeof(draft), "%s/tests/golden/tiny/phi3_long.gguf", golden_source_dir());
    for (size_t i = 0; i < 2 * (sizeof(rows) / sizeof(rows[0])); i++) {
        struct engine_config cfg = run_config(i % 2 ? folder : "phi3_long");
        cfg.executor.kernels = "f32";
        cfg.executor.kv_dtype = DTYPE_F32;
        cfg.executor.tp = rows[i / 2].tp;
        cfg.executor.kv_tokens = rows[i / 2].kv_tokens;
        cfg.prefill_chunk_tokens = rows[i / 2].chunk;
        cfg.draft_tokens = rows[i / 2].draft_tokens;
        cfg.draft_path = rows[i / 2].by_model ? draft : NULL;
        cfg.draft_always = rows[i / 2].by_model;
        check_answers(&cfg, rows[i / 2].name);
    }
}

/* --- the same in any company --- */

static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0, 0, 0, NULL, 0},
    {"tp 2, chunks of 5", 2, 2, 32, 4096, 5, 128, 64, false, false, 0, 0, 0, NULL, 0},
    {"no prefix cache", 1, 1, 16, 4096, 32, 128, 64, true, false, 0, 0, 0, NULL, 0},
    {"small pool", 1, 2, 4, 320, 32, 64, 64, false, true, 0, 0, 0, NULL, 0},
    {"small pool, tp 2, 7 rows", 2, 2, 8, 320, 7, 7, 16, false, true, 0, 0, 0, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 32, false, true, 0, 0, 16, NULL, 0},
    {"drafts by itself", 1, 2, 16, 4096, 32, 128, 3, false, false, 0, 0, 16, "phi3_long", 0.3},
    {"drafts by a model without longrope", 1, 2, 16, 4096, 32, 128, 3, false, false, 0, 0, 8,
     "phi3", 0},
};

static void test_64_alone_equal_64_at_once(void **state)
{
    (void)state;
    same_check("phi3_long", DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

/* A draft model with longrope, beside a model without. */
static void test_64_alone_equal_64_with_drafts_by_longrope(void **state)
{
    static const struct same_variant some[] = {
        {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0, 0, 0, NULL, 0},
        {"drafts", 1, 2, 16, 4096, 32, 128, 5, false, false, 0, 0, 8, "phi3_long", 0},
    };
    (void)state;
    same_check("llama3", DTYPE_BF16, some, sizeof(some) / sizeof(some[0]), 44);
}

/* --- prefixes --- */

/* Runs a prompt of n tokens, the last of them `last`. Returns the tokens from the cache. */
static uint32_t cached_tokens(struct engine *engine, uint32_t n, uint32_t last)
{
    uint32_t prompt[BORDER * 2];
    struct run_result result;
    run_random_prompt(5, prompt, n, 200);
    prompt[n - 1] = last;
    struct engine_request req = run_request(prompt, n, 1);
    run_submit(engine, &req, &result);
    run_wait(engine, &result, 1);
    uint32_t n_cached = result.usage.n_cached_tokens;
    run_result_fini(&result);
    return n_cached;
}

/* The whole blocks of equal tokens are a hit for sequences of the same table alone. */
static void test_a_short_block_is_no_hit_for_a_long_sequence(void **state)
{
    struct engine_config cfg = run_config("phi3_long");
    struct engine *engine = run_open(&cfg);
    (void)state;
    assert_int_equal(cached_tokens(engine, BORDER, 7), 0);
    assert_int_equal(cached_tokens(engine, BORDER, 8), BLOCK_TOKENS);
    assert_int_equal(cached_tokens(engine, BORDER + 5, 7), 0);
    assert_int_equal(cached_tokens(engine, BORDER + 5, 8), 2 * BLOCK_TOKENS);
    assert_int_equal(cached_tokens(engine, BORDER, 9), BLOCK_TOKENS);
    run_close(engine);
}

/* Prompts below the border whose answers cross it, the second time with blocks of the first. At the
 * crossing these blocks are a hit, and the cached tokens of the request stay those of its start. */
static void test_a_crossing_counts_no_cached_tokens_and_no_preemption(void **state)
{
    static const uint32_t lengths[] = {BORDER - 2, BLOCK_TOKENS - 6};
    struct engine_config cfg = run_config("phi3_long");
    struct engine *engine = run_open(&cfg);
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t n = lengths[i / 2];
        struct engine_request req = run_simple(n, BORDER + 16 - n);
        struct run_result result;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        assert_int_equal(result.usage.n_cached_tokens, i == 1 ? BLOCK_TOKENS : 0);
        assert_int_equal(result.usage.n_preemptions, 0);
        assert_int_equal(result.usage.n_generated_tokens, BORDER + 16 - n);
        run_result_fini(&result);
    }
    run_close(engine);
}

/* --- resume --- */

/* Resumes with `cuts[c]` tokens of each choice, of which the first engine knew no more. */
static void check_resume(struct engine *engine, struct engine_request req,
                         const struct run_result *whole, const uint32_t *cuts)
{
    struct engine_resume resume[RUN_MAX_CHOICES] = {{0}};
    struct run_result rest;
    for (uint32_t c = 0; c < req.sampling.n; c++)
        resume[c] = (struct engine_resume){whole->choices[c].ids, cuts[c], 0, false};
    req.resume = resume;
    run_submit(engine, &req, &rest);
    run_wait(engine, &rest, 1);
    for (uint32_t c = 0; c < req.sampling.n; c++) {
        const struct run_choice *w = &whole->choices[c], *r = &rest.choices[c];
        assert_int_equal(cuts[c] + r->n_ids, w->n_ids);
        if (r->n_ids)
            assert_memory_equal(r->ids, w->ids + cuts[c], r->n_ids * sizeof(*r->ids));
    }
    uint32_t known = req.n_prompt_logprobs_known;
    for (uint32_t p = known ? known : 1; req.want_prompt_logprobs && p < req.n_prompt_ids; p++)
        assert_memory_equal(&rest.prompt_logprobs[p - known], &whole->prompt_logprobs[p],
                            sizeof(*rest.prompt_logprobs));
    run_result_fini(&rest);
}

/* Choices are cut on different sides of the border. The engine has seen the request, or has not.
 * The prompt's log-probabilities stay those of the prompt's own length. */
static void test_resume_on_either_side_of_the_border_goes_on_as_if_undisturbed(void **state)
{
    static const uint32_t cuts[][3] = {{0, 0, 0},  {3, 4, 5},    {11, 12, 13}, {12, 12, 12},
                                       {13, 2, 1}, {25, 0, 13},  {0, 29, 12},  {14, 13, 0},
                                       {1, 30, 0}, {30, 30, 29}, {29, 12, 30}};
    struct engine_config cfg = run_config("phi3_long");
    (void)state;
    for (int fresh = 0; fresh < 2; fresh++)
        for (int scores = 0; scores < 3; scores++) {
            struct engine_request req = run_simple(BORDER - 12, 31);
            struct run_result whole;
            struct engine *engine = run_open(&cfg);
            req.sampling.n = 3;
            req.sampling.temperature = 1;
            req.sampling.seed = 11;
            req.want_prompt_logprobs = scores > 0;
            run_submit(engine, &req, &whole);
            run_wait(engine, &whole, 1);
            for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
                req.n_prompt_logprobs_known = scores == 2 ? 7 : 0;
                if (fresh) {
                    run_close(engine);
                    engine = run_open(&cfg);
                }
                check_resume(engine, req, &whole, cuts[i]);
            }
            run_result_fini(&whole);
            run_close(engine);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_equal_those_of_transformers),
        cmocka_unit_test(test_64_alone_equal_64_at_once),
        cmocka_unit_test(test_64_alone_equal_64_with_drafts_by_longrope),
        cmocka_unit_test(test_a_short_block_is_no_hit_for_a_long_sequence),
        cmocka_unit_test(test_a_crossing_counts_no_cached_tokens_and_no_preemption),
        cmocka_unit_test(test_resume_on_either_side_of_the_border_goes_on_as_if_undisturbed),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, load_answers, free_answers);
}
