#include "tests/unit/engine/support/support_same.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_golden.h"

enum { N = SAME_N_JOBS };

struct job {
    uint32_t prompt[SAME_MAX_PROMPT];
    struct engine_request req;
};

static struct job jobs[N];

uint32_t same_n_jobs(void)
{
    const char *few = getenv("SLUICE_TEST_JOBS");
    unsigned long n = few ? strtoul(few, NULL, 10) : N;
    return n > 0 && n < N ? (uint32_t)n : N;
}

/* Mixed lengths, some greedy, most drawn, some with penalties, choices and stops. Every fourth
 * prompt begins like the others of its kind. */
void same_make_jobs(uint32_t vocab, uint32_t max_tokens)
{
    static const char *const stops[] = {"e", "th"};
    static const uint32_t word_a[] = {40}, word_b[] = {50, 51}, word_c[] = {60, 60, 61};
    static const struct engine_bad_word bad_words[] = {
        {word_a, 1, 0}, {word_b, 2, 1}, {word_c, 3, 2}};
    static const uint32_t allowed[] = {2,  40, 41, 45, 46, 50, 51, 52, 60,  61,
                                       70, 71, 72, 80, 81, 90, 91, 99, 120, 130};
    uint32_t n_allowed = 0;
    while (n_allowed < sizeof(allowed) / sizeof(allowed[0]) && allowed[n_allowed] < vocab)
        n_allowed++;
    if (same_n_jobs() < N)
        max_tokens = max_tokens / 4 > 5 ? max_tokens / 4 : 5;
    for (uint32_t i = 0; i < N; i++) {
        struct engine_request *req = &jobs[i].req;
        uint32_t n = 1 + (i * 37) % SAME_MAX_PROMPT;
        run_random_prompt(i, jobs[i].prompt, n, vocab);
        if (i % 4 == 0)
            run_random_prompt(1000, jobs[i].prompt, n < 50 ? n : 50, vocab);
        engine_request_init(req);
        req->prompt_ids = jobs[i].prompt;
        req->n_prompt_ids = n;
        req->stopping.max_tokens = 4 + (i * 13) % (max_tokens - 4);
        req->sampling.temperature = i % 3 ? 0.9f : 0.0f;
        req->sampling.seed = 1000 + i;
        req->sampling.top_k = i % 5 ? 0 : 20;
        req->sampling.top_p = i % 2 ? 0.95f : 1.0f;
        if (i % 7 == 0)
            req->sampling.repetition_penalty = 1.2f;
        if (i % 11 == 0)
            req->sampling.frequency_penalty = 0.5f;
        if (i % 8 == 3)
            req->sampling.n = 3;
        if (i % 6 == 1) {
            req->stopping.stop = stops;
            req->stopping.n_stop = 2;
            req->stopping.min_tokens = 2;
        }
        req->stopping.ignore_eos = i % 2;
        if (i % 6 == 3)
            req->sampling.typical_p = 0.8f;
        if (i % 5 == 2)
            req->sampling.watermark = true;
        if (i % 9 == 4) {
            req->sampling.bad_words = bad_words;
            req->sampling.n_bad_words = 3;
        }
        if (i % 13 == 5) {
            req->sampling.allowed_ids = allowed;
            req->sampling.n_allowed_ids = n_allowed;
        }
        if (i % 16 == 9)
            req->stopping.min_tokens = 3;
        req->return_full_text = i % 7 == 2;
        req->stopping.include_stop = i % 12 == 7;
        req->want_prompt_logprobs = i % 11 == 6 || i == 20;
        req->want_logprobs = i % 10 == 0;
        req->n_top_logprobs = req->want_logprobs || req->want_prompt_logprobs ? 3 : 0;
    }
}

static void run_all(struct engine *engine, struct run_result *results, bool together)
{
    for (uint32_t i = 0; i < same_n_jobs(); i++) {
        run_submit(engine, &jobs[i].req, &results[i]);
        if (!together)
            run_wait(engine, &results[i], 1);
    }
    run_wait(engine, results, same_n_jobs());
}

static void free_all(struct run_result *results, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        run_result_fini(&results[i]);
}

static void wait_idle(struct engine *engine, struct engine_stats *s)
{
    int64_t end = clock_now_ns() + 20 * NS_PER_S;
    for (;;) {
        engine_get_stats(engine, s);
        if (engine_is_idle(engine) && !s->n_running && !s->n_queued)
            return;
        assert_true(clock_now_ns() < end);
        run_poll(engine);
        run_pause();
    }
}

static struct engine_config variant_config(const char *model, enum dtype kv_dtype,
                                           const struct same_variant *v)
{
    static char draft_path[512];
    struct engine_config cfg = run_config(model);
    cfg.executor.kv_dtype = kv_dtype;
    cfg.executor.tp = v->tp;
    cfg.executor.n_threads = v->n_threads;
    cfg.executor.kv_block_size = v->block_size;
    cfg.executor.kv_tokens = v->kv_tokens;
    cfg.prefill_chunk_tokens = v->chunk;
    cfg.max_batch_tokens = v->max_rows;
    cfg.max_concurrent = v->max_concurrent;
    cfg.prefix_cache = !v->no_prefix_cache;
    cfg.draft_tokens = v->draft_tokens;
    if (v->draft) {
        snprintf(draft_path, sizeof(draft_path), "%s/tests/golden/tiny/%s.gguf",
                 golden_source_dir(), v->draft);
        cfg.draft_path = draft_path;
        cfg.draft_always = true;
    }
    if (v->least_rows > 0)
        cfg.target_itl_ms = 0; /* with a target, the fill of a batch would depend on timing */
    return cfg;
}

static void check_variant(const char *model, enum dtype kv_dtype, uint32_t pp,
                          const struct same_variant *v, const struct run_result *alone)
{
    static struct run_result results[N];
    struct engine_config cfg = variant_config(model, kv_dtype, v);
    cfg.executor.pp = pp;
    struct engine *engine = run_open(&cfg);
    struct engine_stats s;
    char what[96];
    const uint32_t n = same_n_jobs();
    run_all(engine, results, true);
    wait_idle(engine, &s);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(what, sizeof(what), "%s, %s, request %u", model, v->name, i);
        run_assert_same(&results[i], &alone[i], what);
    }
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    assert_int_equal(s.n_finished, n);
    if (n == N && (s.n_preemptions > 0) != v->expect_preemptions)
        fail_msg("%s, %s: %llu preemptions", model, v->name, (unsigned long long)s.n_preemptions);
    if (v->no_prefix_cache)
        assert_int_equal(s.n_prefix_hit_tokens, 0);
    else if (n == N && v->max_concurrent < N && !(pp > 1 && v->draft_tokens))
        /* Those that begin together may all come too early. Drafts of steps in flight may take the
         * slots of all snapshots. */
        assert_true(s.n_prefix_hit_tokens > 0);
    /* the number of drafts depends on timing */
    assert_true(v->draft_tokens || !s.n_drafted_tokens);
    print_message("%s: %llu of %llu drafted tokens accepted\n", v->name,
                  (unsigned long long)s.n_accepted_tokens, (unsigned long long)s.n_drafted_tokens);
    if (n == N && v->draft &&
        (double)s.n_accepted_tokens < v->least_accepted * ((double)s.n_drafted_tokens + 1))
        fail_msg("%s, %s: too few drafts, or too few of them right", model, v->name);
    double batching = (double)s.n_decode_rows / (double)s.n_decode_active;
    if (n == N && batching < v->least_batching)
        fail_msg("%s, %s: %.2f rows per sequence that could decode", model, v->name, batching);
    double rows = (double)s.n_decode_rows / (double)s.n_decode_steps;
    print_message("%s: %.1f rows per decode step\n", v->name, rows);
    if (n == N && rows < v->least_rows)
        fail_msg("%s, %s: %.1f rows per decode step", model, v->name, rows);
    free_all(results, n);
    run_close(engine);
}

struct engine_request *same_job(uint32_t i)
{
    return &jobs[i].req;
}

void same_check(const char *model, enum dtype kv_dtype, const struct same_variant *variants,
                size_t n_variants, uint32_t max_tokens)
{
    same_check_stages(model, kv_dtype, 1, variants, n_variants, max_tokens);
}

void same_check_stages(const char *model, enum dtype kv_dtype, uint32_t pp,
                       const struct same_variant *variants, size_t n_variants, uint32_t max_tokens)
{
    static struct run_result alone[N];
    struct engine_config cfg = variant_config(model, kv_dtype, &variants[0]);
    struct engine *engine = run_open(&cfg);
    same_make_jobs(engine_model_info(engine)->vocab_size, max_tokens);
    run_all(engine, alone, false);
    run_close(engine);
    uint32_t n_different = 0; /* the model generates text */
    for (uint32_t i = 0; i < same_n_jobs(); i++)
        n_different += alone[i].choices[0].n_ids > 1 &&
                       alone[i].choices[0].ids[0] != alone[i].choices[0].ids[1];
    assert_true(n_different > same_n_jobs() / 2);
    for (size_t i = 0; i < n_variants; i++)
        if (variants[i].tp == 1 || !getenv("SLUICE_TEST_DEVICE")) /* a GPU runs a single rank */
            check_variant(model, kv_dtype, pp, &variants[i], alone);
    free_all(alone, same_n_jobs());
}
