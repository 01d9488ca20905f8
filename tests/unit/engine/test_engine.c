/* Tests of the engine on tiny checkpoints. The same request gives the same tokens beside any
 * others and in any cut. The same holds after preemption, from the cache and after a resume. Also
 * tests ends, cancels, deadlines and memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_same.h"
#include "tests/unit/engine/support/support_tiny.h"

enum { REQUEST_TEST_MAX_BIASES = 1024 };

static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"1 thread", 1, 1, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"tp 2", 2, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"no prefix cache", 1, 2, 16, 4096, 32, 128, 64, true, false, 0.75, 0, 0, NULL, 0},
    {"chunks of 5, blocks of 32", 1, 2, 32, 4096, 5, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"whole prompts, large steps", 1, 2, 16, 4096, 512, 512, 256, false, false, 0.75, 0, 0, NULL,
     0},
    {"small pool", 1, 2, 4, 320, 32, 64, 64, false, true, 0.0, 0, 0, NULL, 0},
    {"small pool, no prefix cache", 1, 2, 4, 320, 32, 64, 64, true, true, 0.0, 0, 0, NULL, 0},
    {"small pool, tp 2, 7 rows", 2, 2, 8, 320, 7, 7, 16, false, true, 0.0, 0, 0, NULL, 0},
    {"drafts, two at a time", 1, 2, 16, 4096, 32, 128, 3, false, false, 0.0, 0, 16, NULL, 0},
    {"drafts, all at once, tp 2", 2, 2, 16, 4096, 32, 512, 64, false, false, 0.0, 0, 4, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
};

static void test_64_alone_equal_64_at_once_q4(void **state)
{
    (void)state;
    same_check("q4_1", DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

static void test_64_alone_equal_64_at_once_dense(void **state)
{
    (void)state;
    same_check("bf16", DTYPE_BF16, variants, 4, 44);
    same_check("q8_0", DTYPE_BF16, variants, 4, 44);
}

/* The same with an int8 KV cache. A copied or shared block keeps its codes and scales together. */
static void test_64_alone_equal_64_at_once_int8_kv(void **state)
{
    (void)state;
    static const struct same_variant some[] = {
        {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
        {"tp 2, chunks of 5", 2, 2, 32, 4096, 5, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
        {"small pool", 1, 2, 4, 320, 32, 64, 64, false, true, 0.0, 0, 0, NULL, 0},
        {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
        {"drafts by a model", 1, 2, 16, 4096, 32, 128, 3, false, false, 0.0, 0, 8, "q4_1", 0.1},
    };
    same_check("q4_1", DTYPE_I8, some, sizeof(some) / sizeof(some[0]), 44);
}

/* --- resume --- */

/* Resumes the request from several of its events, with the tokens of that event. The old and the
 * new tokens together equal the undisturbed answer. */
static void test_resume_goes_on_as_if_undisturbed(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    same_make_jobs(engine_model_info(engine)->vocab_size, 44);
    for (uint32_t i = 0; i < same_n_jobs(); i += 3) {
        struct run_result whole, rest;
        struct engine_request req = *same_job(i);
        struct engine_resume resume[RUN_MAX_CHOICES];
        run_submit(engine, &req, &whole);
        run_wait(engine, &whole, 1);
        for (uint32_t cut = 0; cut <= whole.choices[0].n_cuts; cut += 1 + cut / 3) {
            size_t n_sent[RUN_MAX_CHOICES];
            for (uint32_t c = 0; c < req.sampling.n; c++) {
                const struct run_choice *w = &whole.choices[c];
                struct run_cut at = {0};
                if (cut && w->n_cuts)
                    at = w->cuts[(cut < w->n_cuts ? cut : w->n_cuts) - 1];
                n_sent[c] = at.n_text;
                resume[c] = (struct engine_resume){w->ids, at.n_ids, (uint32_t)n_sent[c], false};
            }
            /* The log-probabilities of the prompt arrive in parts, before the first token. */
            req.n_prompt_logprobs_known = cut ? req.n_prompt_ids : req.n_prompt_ids / 2;
            req.resume = resume;
            run_submit(engine, &req, &rest);
            run_wait(engine, &rest, 1);
            assert_int_equal(rest.usage.n_generated_tokens, whole.usage.n_generated_tokens);
            for (uint32_t c = 0; c < req.sampling.n; c++) {
                const struct run_choice *w = &whole.choices[c], *r = &rest.choices[c];
                assert_int_equal(resume[c].n_ids + r->n_ids, w->n_ids);
                if (r->n_ids)
                    assert_memory_equal(r->ids, w->ids + resume[c].n_ids,
                                        r->n_ids * sizeof(*r->ids));
                assert_int_equal(r->n_text, w->n_text - n_sent[c]);
                if (r->n_text)
                    assert_memory_equal(r->text, w->text + n_sent[c], r->n_text);
                assert_int_equal(r->reason, w->reason);
                assert_true(!r->n_text || r->n_released == w->n_released);
            }
            if (req.want_prompt_logprobs) {
                uint32_t known = req.n_prompt_logprobs_known;
                assert_int_equal(rest.n_prompt_logprobs, req.n_prompt_ids - known);
                assert_true(cut || rest.first_prompt_logprob == known);
                for (uint32_t p = known ? known : 1; p < req.n_prompt_ids; p++)
                    assert_memory_equal(&rest.prompt_logprobs[p - known], &whole.prompt_logprobs[p],
                                        sizeof(*rest.prompt_logprobs));
            }
            run_result_fini(&rest);
        }
        run_result_fini(&whole);
    }
    run_close(engine);
}

static void test_resume_bad_state_is_refused(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct error err;
    uint64_t id;
    const uint32_t prompt[] = {5, 6, 7}, ids[] = {40, 41, 42}, ended[] = {40, 2, 42},
                   bad[] = {9999};
    struct engine_resume resume = {ids, 3, 10000, false};
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 3;
    req.resume = &resume;
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "resume[0].text_bytes_sent");
    resume = (struct engine_resume){ended, 3, 0, false};
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "resume[0].generated_ids");
    resume = (struct engine_resume){bad, 1, 0, false};
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_INVALID_ARGUMENT);
    run_close(engine);
}

/* A resume lowers max_tokens below the number of tokens that already exist. The choice ends at its
 * present length with its whole text. */
static void test_resume_when_more_was_generated_than_the_limit_then_it_ends_there(void **state)
{
    (void)state;
    static const char *const stop[] = {"never to be seen"};
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    same_make_jobs(engine_model_info(engine)->vocab_size, 44);
    for (uint32_t i = 0; i < SAME_N_JOBS; i += 5) {
        struct run_result whole, ends, rest;
        struct engine_request req = *same_job(i);
        struct engine_resume resume[RUN_MAX_CHOICES];
        req.stopping.ignore_eos = true;
        req.stopping.min_tokens = 0;
        req.stopping.max_tokens = 30;
        req.stopping.stop = stop;
        req.stopping.n_stop = i % 2;
        req.want_prompt_logprobs = req.want_logprobs = false;
        req.n_top_logprobs = 0;
        run_submit(engine, &req, &whole);
        run_wait(engine, &whole, 1);
        if (whole.choices[0].n_ids < 30) { /* the stop ids of the job ended it */
            run_result_fini(&whole);
            continue;
        }
        req.stopping.max_tokens = 17;
        run_submit(engine, &req, &ends);
        run_wait(engine, &ends, 1);
        for (uint32_t c = 0; c < req.sampling.n; c++)
            resume[c] =
                (struct engine_resume){whole.choices[c].ids, ends.choices[c].n_ids, 0, false};
        req.stopping.max_tokens = 4;
        req.resume = resume;
        run_submit(engine, &req, &rest);
        run_wait(engine, &rest, 1);
        assert_int_equal(rest.usage.n_generated_tokens, ends.usage.n_generated_tokens);
        for (uint32_t c = 0; c < req.sampling.n; c++) {
            const struct run_choice *e = &ends.choices[c], *r = &rest.choices[c];
            assert_int_equal(r->n_ids, 0);
            assert_int_equal(r->reason, e->reason);
            assert_int_equal(r->n_released, e->n_released);
            assert_int_equal(r->n_text, e->n_text);
            assert_memory_equal(r->text, e->text, e->n_text);
        }
        run_result_fini(&rest);
        run_result_fini(&ends);
        run_result_fini(&whole);
    }
    run_close(engine);
}

/* The resume has other stop strings. A new stop string lies in text that an old stop string held
 * back. */
static void test_resume_when_a_new_stop_is_in_held_text_then_it_ends_there(void **state)
{
    (void)state;
    enum { MAX_TEXT = 512, LONG = 16, SHORT = 3 };
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    unsigned n_within = 0;
    run_slow_steps(NS_PER_MS / 4); /* slow steps give this thread time to read at many points */
    same_make_jobs(engine_model_info(engine)->vocab_size, 44);
    for (uint32_t i = 0; i < SAME_N_JOBS; i++) {
        struct run_result whole, held, rest;
        struct engine_request req = *same_job(i);
        char old[LONG + 2], new[SHORT + 1], text[MAX_TEXT];
        const char *const old_stop[] = {old}, *const new_stop[] = {new};
        req.stopping = (struct engine_stopping){.max_tokens = 40, .ignore_eos = true};
        req.sampling.n = 1;
        req.want_prompt_logprobs = req.want_logprobs = false;
        req.n_top_logprobs = 0;
        run_submit(engine, &req, &whole);
        run_wait(engine, &whole, 1);
        const struct run_choice *w = &whole.choices[0];
        size_t at = 0, n_plain = 0;
        for (size_t k = 0; k < w->n_text && k < MAX_TEXT && n_plain < LONG; k++) {
            n_plain = w->text[k] > 0 ? n_plain + 1 : 0;
            at = k + 1 - n_plain;
        }
        bool fits = w->n_text < MAX_TEXT && n_plain == LONG;
        if (!fits) {
            run_result_fini(&whole);
            continue;
        }
        memcpy(text, w->text, w->n_text);
        text[w->n_text] = '\0';
        memcpy(old, text + at, LONG); /* the engine holds this text until the last byte differs */
        memcpy(old + LONG, "\1", 2);
        memcpy(new, text + at + LONG / 2, SHORT);
        new[SHORT] = '\0';
        req.stopping.stop = old_stop;
        req.stopping.n_stop = 1;
        run_submit(engine, &req, &held);
        run_wait(engine, &held, 1);
        req.stopping.stop = new_stop;
        for (uint32_t k = 0; k < held.choices[0].n_cuts; k++) {
            struct run_cut cut = held.choices[0].cuts[k];
            struct engine_resume resume = {w->ids, cut.n_ids, (uint32_t)cut.n_text, false};
            const char *match = strstr(text + cut.n_text, new);
            req.resume = &resume;
            run_submit(engine, &req, &rest);
            run_wait(engine, &rest, 1);
            const struct run_choice *r = &rest.choices[0];
            size_t n = (match ? (size_t)(match - text) : w->n_text) - cut.n_text;
            assert_int_equal(r->reason, match ? FINISH_STOP : FINISH_LENGTH);
            assert_string_equal(r->matched_stop, match ? new : "");
            assert_int_equal(r->n_text, n);
            if (n)
                assert_memory_equal(r->text, text + cut.n_text, n);
            n_within += r->n_ids == 0 && match;
            run_result_fini(&rest);
        }
        req.resume = NULL;
        run_result_fini(&held);
        run_result_fini(&whole);
    }
    assert_true(n_within > 3);
    run_close(engine);
}

/* --- ends --- */

static uint32_t end_id(const struct engine *engine)
{
    return tokenizer_info(engine_tokenizer(engine))->end_ids[0];
}

static void test_ends_by_id_string_and_length(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct run_result plain, r;
    uint32_t prompt[8];
    run_random_prompt(4, prompt, 8, 200);
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 8;
    req.stopping.max_tokens = 24;
    req.stopping.ignore_eos = true;
    req.sampling.temperature = 1.0f;
    req.sampling.seed = 5;
    run_submit(engine, &req, &plain);
    run_wait(engine, &plain, 1);
    const struct run_choice *p = &plain.choices[0];
    assert_int_equal(p->reason, FINISH_LENGTH);
    assert_int_equal(p->n_ids, 24);
    assert_int_equal(p->n_released, 24);

    /* A stop id: the first place where the token at 10 stands; its text and id are not released. */
    uint32_t stop_id = p->ids[10], at = 0;
    while (p->ids[at] != stop_id)
        at++;
    req.stopping.stop_token_ids = &stop_id;
    req.stopping.n_stop_token_ids = 1;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_STOP);
    assert_int_equal(r.choices[0].matched_stop_id, stop_id);
    assert_int_equal(r.choices[0].n_ids, at + 1);
    assert_int_equal(r.choices[0].n_released, at);
    assert_memory_equal(r.choices[0].text, p->text, r.choices[0].n_text);
    run_result_fini(&r);

    /* Until min_tokens the id cannot be drawn at all. */
    req.stopping.min_tokens = 20;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    for (uint32_t i = 0; i < 20; i++)
        assert_true(r.choices[0].ids[i] != stop_id);
    run_result_fini(&r);
    req.stopping.min_tokens = 0;
    req.stopping.n_stop_token_ids = 0;

    /* A stop string taken out of the text (it may stand there earlier too). */
    char stop[8] = {0};
    size_t begin = p->n_text / 2;
    while (((unsigned char)p->text[begin] & 0xC0) == 0x80)
        begin++;
    size_t end = begin + 3;
    while (((unsigned char)p->text[end] & 0xC0) == 0x80)
        end++;
    memcpy(stop, p->text + begin, end - begin);
    const char *stops[] = {stop};
    req.stopping.stop = stops;
    req.stopping.n_stop = 1;
    for (int include = 0; include < 2; include++) {
        size_t expected = (size_t)(strstr(p->text, stop) - p->text) + (include ? strlen(stop) : 0);
        req.stopping.include_stop = include;
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        assert_int_equal(r.choices[0].reason, FINISH_STOP);
        assert_string_equal(r.choices[0].matched_stop, stop);
        assert_int_equal(r.choices[0].n_text, expected);
        assert_memory_equal(r.choices[0].text, p->text, expected);
        assert_true(r.choices[0].n_released <= r.choices[0].n_ids);
        run_result_fini(&r);
    }
    run_result_fini(&plain);
    run_close(engine);
}

static void test_end_of_sequence_by_bias(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct run_result r;
    const uint32_t prompt[] = {50, 51};
    struct sample_bias bias = {end_id(engine), 100.0f};
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 2;
    req.stopping.min_tokens = 5;
    req.stopping.max_tokens = 30;
    req.sampling.logit_bias = &bias;
    req.sampling.n_logit_bias = 1;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_STOP);
    assert_int_equal(r.choices[0].n_ids, 6); /* five ids, then the end id */
    assert_int_equal(r.choices[0].n_released, 5);
    assert_int_equal(r.choices[0].matched_stop_id, bias.id);
    run_result_fini(&r);
    req.stopping.ignore_eos = true;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_LENGTH);
    assert_int_equal(r.choices[0].n_ids, 30);
    assert_int_equal(r.choices[0].n_text, 0); /* special tokens leave no text */
    assert_int_equal(r.choices[0].n_released, 30);
    run_result_fini(&r);
    run_close(engine);
}

/* A stop string "<|im_end|>" never matched while special tokens were hidden: the token left no
 * text, so the answer ran on to max_tokens. */
static void test_stop_that_is_a_special_literal_ends_there_shown_or_not(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    const uint32_t prompt[] = {50, 51};
    const char *stops[] = {"never", "<|im_end|>"};
    int32_t id = tokenizer_find(engine_tokenizer(engine), stops[1], strlen(stops[1]));
    assert_true(id >= 0);
    struct sample_bias bias = {(uint32_t)id, 100.0f};
    const uint32_t before[] = {60, 61, 62, (uint32_t)id};
    for (int i = 0; i < 8; i++) {
        bool include = i & 1, keep = i & 2, resumed = i & 4;
        struct engine_request req;
        struct run_result r;
        struct engine_resume resume = {before, 4, 0, false};
        engine_request_init(&req);
        req.prompt_ids = prompt;
        req.n_prompt_ids = 2;
        req.stopping.ignore_eos = true;
        req.stopping.max_tokens = 30;
        req.stopping.stop = stops;
        req.stopping.n_stop = 2;
        req.stopping.include_stop = include;
        req.keep_special_tokens = keep;
        req.sampling.logit_bias = &bias;
        req.sampling.n_logit_bias = 1;
        req.resume =
            resumed ? &resume : NULL; /* the first replica was lost before its end was reported */
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        assert_int_equal(r.choices[0].reason, FINISH_STOP);
        assert_string_equal(r.choices[0].matched_stop, stops[1]);
        assert_int_equal(r.choices[0].n_ids, resumed ? 0 : 1);
        size_t n = strlen(stops[1]), n_text = r.choices[0].n_text;
        bool shown = n_text >= n && memcmp(r.choices[0].text + n_text - n, stops[1], n) == 0;
        assert_int_equal(shown, include);
        assert_true(resumed || n_text == (include ? n : 0));
        run_result_fini(&r);
    }
    run_close(engine);
}

/* A token of a special stop does not end a choice before min_tokens. */
static void test_stop_that_is_a_special_literal_waits_for_min_tokens(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct run_result r;
    const uint32_t prompt[] = {50, 51};
    const char *stops[] = {"<|im_end|>"};
    struct sample_bias bias = {
        (uint32_t)tokenizer_find(engine_tokenizer(engine), stops[0], strlen(stops[0])), 100.0f};
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 2;
    req.stopping.ignore_eos = true;
    req.stopping.min_tokens = 5;
    req.stopping.max_tokens = 30;
    req.stopping.stop = stops;
    req.stopping.n_stop = 1;
    req.sampling.logit_bias = &bias;
    req.sampling.n_logit_bias = 1;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_STOP);
    assert_int_equal(r.choices[0].n_ids, 5);
    run_result_fini(&r);
    run_close(engine);
}

/* Symptom: a vocabulary matrix had more rows than tokens. A row without a token was drawn, and the
 * request failed because of this id. */
static void test_rows_without_a_token_are_never_drawn_or_listed(void **state)
{
    (void)state;
    static const char *const control[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const struct gguf_vocab vocab = {.pre = "gpt-2", .control = control, .n_control = 3};
    enum { N_TOKENS = 256 + 3 };
    for (int i = 0; i < 4; i++) {
        struct tiny_spec spec = tiny_spec_default();
        struct engine_config cfg = run_config("q4_1");
        struct engine_request req;
        struct run_result r;
        uint32_t prompt[8];
        spec.vocab = N_TOKENS + 64;
        spec.tokenizer = &vocab;
        spec.untied = i & 1;
        spec.skip = i & 1 ? NULL : "llama.vocab_size";
        cfg.executor.tp = i & 2 ? 2 : 1;
        cfg.checkpoint = tiny_open(&spec);
        struct engine *engine = run_open(&cfg);
        checkpoint_close(cfg.checkpoint);
        assert_int_equal(engine_model_info(engine)->vocab_size, N_TOKENS);
        run_random_prompt(4, prompt, 8, 200);
        engine_request_init(&req);
        req.prompt_ids = prompt;
        req.n_prompt_ids = 8;
        req.stopping.max_tokens = 200;
        req.stopping.ignore_eos = true;
        req.sampling.temperature = 100;
        req.sampling.seed = 5;
        req.want_logprobs = req.want_prompt_logprobs = true;
        req.n_top_logprobs = SAMPLE_MAX_TOP;
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        assert_int_equal(r.choices[0].reason, FINISH_LENGTH);
        assert_int_equal(r.choices[0].n_ids, 200);
        for (uint32_t t = 0; t < 200; t++) {
            assert_true(r.choices[0].ids[t] < N_TOKENS);
            for (uint32_t k = 0; k < SAMPLE_MAX_TOP; k++)
                assert_true(r.choices[0].logprobs[t].top_ids[k] < N_TOKENS);
        }
        for (uint32_t t = 1; t < 8; t++)
            for (uint32_t k = 0; k < SAMPLE_MAX_TOP; k++)
                assert_true(r.prompt_logprobs[t].top_ids[k] < N_TOKENS);
        run_result_fini(&r);
        prompt[3] = N_TOKENS;
        struct error err = {0};
        uint64_t id;
        assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, "prompt.token_ids[3]");
        run_close(engine);
    }
}

static void test_all_banned_ends_that_choice_alone(void **state)
{
    (void)state;
    static struct sample_bias bans[REQUEST_TEST_MAX_BIASES];
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request bad, good;
    struct run_result results[2];
    const uint32_t prompt[] = {50, 51};
    uint32_t vocab = engine_model_info(engine)->vocab_size;
    assert_true(vocab <= REQUEST_TEST_MAX_BIASES);
    for (uint32_t i = 0; i < vocab; i++)
        bans[i] = (struct sample_bias){i, -INFINITY};
    engine_request_init(&bad);
    bad.prompt_ids = prompt;
    bad.n_prompt_ids = 2;
    bad.stopping.max_tokens = 20;
    good = bad;
    bad.sampling.logit_bias = bans;
    bad.sampling.n_logit_bias = vocab;
    run_submit(engine, &good, &results[0]);
    run_submit(engine, &bad, &results[1]);
    run_wait(engine, results, 2);
    assert_int_equal(results[0].choices[0].status, 0);
    assert_true(results[0].choices[0].reason != FINISH_ERROR);
    assert_int_equal(results[1].choices[0].reason, FINISH_ERROR);
    assert_int_equal(results[1].choices[0].status, STATUS_FAILED_PRECONDITION);
    run_result_fini(&results[0]);
    run_result_fini(&results[1]);
    run_close(engine);
}

static void test_context_cuts_max_tokens_and_long_prompts_are_refused(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    cfg.executor.kv_tokens =
        48; /* the pool is smaller than the context, so the context is cut to fit */
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct run_result r;
    struct error err;
    uint64_t id;
    uint32_t prompt[64];
    run_random_prompt(1, prompt, 64, 200);
    assert_int_equal(engine_context_tokens(engine), 48);
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.stopping.ignore_eos = true;
    for (uint32_t n = 40; n <= 47; n += 7) {
        req.n_prompt_ids = n;
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        assert_int_equal(r.choices[0].reason, FINISH_CONTEXT);
        assert_int_equal(r.choices[0].n_ids, 48 - n);
        run_result_fini(&r);
    }
    req.n_prompt_ids = 48;
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(err.reason, REASON_CONTEXT_TOO_LONG);
    assert_string_equal(err.field, "prompt");
    run_close(engine);
}

/* --- logprobs, choices, caching --- */

static void test_logprobs_sum_and_order(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("f32");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct run_result r;
    const uint32_t prompt[] = {50, 51, 60};
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 3;
    req.stopping.max_tokens = 10;
    req.want_logprobs = true;
    req.n_top_logprobs = 20;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].n_logprobs, r.choices[0].n_ids);
    for (uint32_t i = 0; i < r.choices[0].n_ids; i++) {
        const struct engine_logprob *l = &r.choices[0].logprobs[i];
        double sum = 0.0;
        assert_int_equal(l->id, r.choices[0].ids[i]);
        assert_int_equal(l->n_top, 20);
        assert_int_equal(l->top_ids[0], l->id); /* greedy */
        assert_true(l->logprob <= 0.0f && l->logprob == l->top_logprobs[0]);
        for (uint32_t j = 0; j < 20; j++)
            sum += exp((double)l->top_logprobs[j]);
        assert_true(sum <= 1.0 + 1e-5);
    }
    run_result_fini(&r);
    run_close(engine);
}

static void test_choices_are_those_of_their_index_and_seed(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    struct run_result four, again, two;
    uint32_t prompt[37], n_same = 0;
    run_random_prompt(9, prompt, 37, 200);
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 37;
    req.stopping.max_tokens = 20;
    req.stopping.ignore_eos = true;
    req.sampling.temperature = 1.0f;
    req.sampling.seed = 77;
    req.sampling.n = 4;
    run_submit(engine, &req, &four);
    run_wait(engine, &four, 1);
    run_submit(engine, &req, &again);
    run_wait(engine, &again, 1);
    run_assert_same(&four, &again, "n = 4 again");
    assert_int_equal(four.usage.n_generated_tokens, 80);
    assert_int_equal(four.usage.n_cached_tokens, 0);
    assert_int_equal(again.usage.n_cached_tokens, 32); /* the two full blocks of 16 */
    for (uint32_t i = 1; i < 4; i++)
        n_same += !memcmp(four.choices[0].ids, four.choices[i].ids, 20 * sizeof(uint32_t));
    assert_int_equal(n_same, 0);
    req.sampling.n = 2;
    run_submit(engine, &req, &two);
    run_wait(engine, &two, 1);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(two.choices[i].ids, four.choices[i].ids, 20 * sizeof(uint32_t));
    run_result_fini(&four);
    run_result_fini(&again);
    run_result_fini(&two);
    run_close(engine);
}

static void test_prefix_is_not_shared_across_salts(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req;
    static const struct {
        const char *salt;
        uint32_t n_cached;
    } rows[] = {{"a", 0}, {"a", 48}, {"b", 0}, {NULL, 0}, {"", 48}, {"b", 48}, {"ab", 0}};
    uint32_t prompt[60];
    run_random_prompt(3, prompt, 60, 200);
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 60;
    req.stopping.max_tokens = 2;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run_result r;
        req.cache_salt = rows[i].salt;
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        assert_int_equal(r.usage.n_cached_tokens, rows[i].n_cached);
        run_result_fini(&r);
    }
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_at_once_q4),
        cmocka_unit_test(test_64_alone_equal_64_at_once_dense),
        cmocka_unit_test(test_64_alone_equal_64_at_once_int8_kv),
        cmocka_unit_test(test_resume_goes_on_as_if_undisturbed),
        cmocka_unit_test(test_resume_bad_state_is_refused),
        cmocka_unit_test(test_resume_when_more_was_generated_than_the_limit_then_it_ends_there),
        cmocka_unit_test(test_resume_when_a_new_stop_is_in_held_text_then_it_ends_there),
        cmocka_unit_test(test_ends_by_id_string_and_length),
        cmocka_unit_test(test_end_of_sequence_by_bias),
        cmocka_unit_test(test_stop_that_is_a_special_literal_ends_there_shown_or_not),
        cmocka_unit_test(test_stop_that_is_a_special_literal_waits_for_min_tokens),
        cmocka_unit_test(test_rows_without_a_token_are_never_drawn_or_listed),
        cmocka_unit_test(test_all_banned_ends_that_choice_alone),
        cmocka_unit_test(test_context_cuts_max_tokens_and_long_prompts_are_refused),
        cmocka_unit_test(test_logprobs_sum_and_order),
        cmocka_unit_test(test_choices_are_those_of_their_index_and_seed),
        cmocka_unit_test(test_prefix_is_not_shared_across_salts),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
