/* Tests of the engine beyond its answers. Covers cancels, full queues, slow and absent readers,
 * callers on several threads, drain, and close at any moment. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sha256.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_engine.h"

/* --- cancel --- */

enum { STORM = 1000, AT_ONCE = 60 };

/* The phase of a request when its cancel is sent. */
enum phase { IN_QUEUE, IN_PREFILL, IN_DECODE, N_PHASES };

static enum phase phase_of(const struct run_result *r)
{
    if (!r->started)
        return IN_QUEUE;
    return r->choices[0].n_ids ? IN_DECODE : IN_PREFILL;
}

/* Returns the phase in which a request ended, from its counters: never started, started without a
 * token, or with a token. */
static enum phase ended_in(const struct run_result *r)
{
    if (!r->started)
        return IN_QUEUE;
    return r->usage.n_generated_tokens ? IN_DECODE : IN_PREFILL;
}

static void test_1000_cancels_give_all_blocks_back(void **state)
{
    (void)state;
    static struct run_result results[STORM];
    struct engine_config cfg = run_config("q4_1");
    cfg.max_concurrent = 16;
    cfg.max_queued = 64;
    cfg.prefill_chunk_tokens = 8;
    cfg.max_batch_tokens = 24;
    struct engine *engine = run_open(&cfg);
    uint32_t n_free = run_stats(engine).n_blocks_free, n_cancelled[N_PHASES] = {0};
    uint32_t n_next = 0, n_done = 0, x = 5, n_first = 0;
    while (n_done < STORM) {
        uint32_t n_alive = 0;
        run_poll(engine);
        for (uint32_t i = n_first; i < n_next; i++) {
            if (results[i].done) {
                n_first += i == n_first;
                continue;
            }
            n_alive++;
            /* Cancels request i in phase i % N_PHASES, mostly at a random moment in that phase. */
            x = x * 1664525u + 1013904223u;
            if (phase_of(&results[i]) == i % N_PHASES &&
                (i % N_PHASES == IN_PREFILL || (x >> 8) % 3 == 0))
                engine_cancel(engine, results[i].id);
        }
        for (; n_alive < AT_ONCE && n_next < STORM; n_alive++, n_next++) {
            struct engine_request req =
                run_simple(n_next % 3 == IN_PREFILL ? 400 : 20 + n_next % 60, 100);
            req.sampling.n = 1 + n_next % 4 / 3;
            req.sampling.temperature = 1.0f;
            req.sampling.seed = n_next;
            char salt[16]; /* a long prompt that is cached would be computed at once */
            snprintf(salt, sizeof(salt), "%u", n_next % 3 == IN_PREFILL ? n_next : n_next % 2);
            req.cache_salt = salt;
            run_submit(engine, &req, &results[n_next]);
        }
        n_done = 0;
        for (uint32_t i = 0; i < n_next; i++)
            n_done += results[i].done;
        if (n_done < STORM)
            run_pause();
    }
    for (uint32_t i = 0; i < STORM; i++) {
        if (results[i].choices[0].reason == FINISH_CANCELLED)
            n_cancelled[ended_in(&results[i])]++;
        else
            assert_int_equal(results[i].choices[0].reason, FINISH_LENGTH);
        run_result_fini(&results[i]);
    }
    run_wait_idle(engine);
    for (int p = 0; p < N_PHASES; p++)
        if (n_cancelled[p] < 200)
            fail_msg("%u cancels in the queue, %u in prefill, %u in decode", n_cancelled[0],
                     n_cancelled[1], n_cancelled[2]);
    assert_int_equal(run_stats(engine).n_blocks_free, n_free);
    assert_int_equal(run_stats(engine).n_cancelled + run_stats(engine).n_finished, STORM);
    engine_cancel(engine, 123456789); /* unknown ids are ignored */
    run_close(engine);
}

static void test_cancel_takes_effect_within_a_step(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result r;
    struct engine_request req = run_simple(10, 400);
    run_slow_steps(NS_PER_MS);
    run_submit(engine, &req, &r);
    run_wait_ids(engine, &r, 5);
    engine_cancel(engine, r.id);
    uint64_t n_steps = run_stats(engine).n_steps;
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_CANCELLED);
    assert_true(run_stats(engine).n_steps <=
                n_steps + 2); /* the current step, and a step before n_steps was read */
    run_result_fini(&r);
    run_close(engine);
}

/* --- pressure --- */

static void test_full_queue_is_refused_and_recovers(void **state)
{
    (void)state;
    static struct run_result results[12];
    struct engine_config cfg = run_config("q4_1");
    cfg.max_concurrent = 2;
    cfg.max_queued = 10;
    struct engine *engine = run_open(&cfg);
    struct engine_request req = run_simple(10, 400);
    struct error err;
    uint64_t id;
    run_slow_steps(2 * NS_PER_MS);
    for (uint32_t i = 0; i < 2; i++) {
        run_submit(engine, &req, &results[i]);
        run_wait_ids(engine, &results[i], 1);
    }
    for (uint32_t i = 2; i < 12; i++)
        run_submit(engine, &req, &results[i]);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_RESOURCE_EXHAUSTED);
        assert_int_equal(err.reason, REASON_QUEUE_FULL);
        assert_true(err.retry_after_ms >= 50);
    }
    assert_int_equal(run_stats(engine).n_queued, 10);
    for (uint32_t i = 0; i < 12; i++)
        engine_cancel(engine, results[i].id);
    run_wait(engine, results, 12);
    for (uint32_t i = 0; i < 12; i++)
        run_result_fini(&results[i]);
    req = run_simple(10, 4);
    run_submit(engine, &req, &results[0]);
    run_wait(engine, results, 1);
    run_result_fini(&results[0]);
    run_close(engine);
}

static void test_slow_reader_gets_bigger_events_not_more(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result r;
    struct engine_request req = run_simple(10, 300);
    run_submit(engine, &req, &r);
    int64_t end = clock_now_ns() + 60 * NS_PER_S;
    while (!engine_is_idle(engine) && clock_now_ns() < end)
        run_sleep_ms(1);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].n_ids, 300);
    assert_int_equal(r.n_events, 3); /* started, tokens, finished */
    run_result_fini(&r);
    run_close(engine);
}

/* A prompt with requested log-probabilities is computed whole, in pieces as large as a step scores.
 * The values are the same with cached blocks, alone, or with room for a single sequence. */
static void test_prompt_logprobs_take_no_prefix_hit(void **state)
{
    (void)state;
    struct run_result first, r;
    for (uint32_t max_concurrent = 1; max_concurrent <= 32; max_concurrent += 31) {
        struct engine_config cfg = run_config("q4_1");
        cfg.max_concurrent = max_concurrent;
        struct engine *engine = run_open(&cfg);
        struct engine_request req = run_simple(200, 4);
        req.want_prompt_logprobs = true;
        req.n_top_logprobs = 2;
        for (int i = 0; i < 3; i++) {
            struct run_result *result = i || max_concurrent > 1 ? &r : &first;
            run_submit(engine, &req, result);
            run_wait(engine, result, 1);
            assert_int_equal(result->n_prompt_logprobs, 200);
            assert_int_equal(result->usage.n_cached_tokens, 0);
            assert_true(isnan(result->prompt_logprobs[0].logprob));
            for (uint32_t p = 0; p < 200; p++)
                assert_int_equal(result->prompt_logprobs[p].id, req.prompt_ids[p]);
            if (result == &r) {
                run_assert_same(&r, &first, "prompt log-probabilities again");
                run_result_fini(&r);
            }
        }
        assert_int_equal(run_stats(engine).n_prefix_hit_tokens, 0);
        req.want_prompt_logprobs = false;
        req.n_top_logprobs = 0;
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        assert_true(r.usage.n_cached_tokens > 150);
        run_result_fini(&r);
        run_close(engine);
    }
    run_result_fini(&first);
}

/* --- start and end --- */

static void test_drain_refuses_new_and_finishes_old(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result r;
    struct error err;
    uint64_t id;
    struct engine_request req = run_simple(10, 100);
    run_submit(engine, &req, &r);
    engine_drain(engine);
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_UNAVAILABLE);
    assert_int_equal(err.reason, REASON_DRAINING);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].n_ids, 100);
    run_wait_idle(engine);
    assert_int_equal(engine_health(engine, &err), 0);
    run_result_fini(&r);
    run_close(engine);
}

/* Symptom: a copy of weights that no GPU has was refused without a reason. */
static void test_keep_when_no_gpu_has_weights_then_refused_with_a_reason(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    const struct executor_keep terms = {.n_threads = 1};
    struct executor_packed kept;
    struct error err;
    assert_int_equal(engine_keep(engine, &terms, &kept, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_NO_DEVICE_WEIGHTS);
    assert_int_equal(kept.n_ranks, 0);
    run_close(engine);
}

/* Closes the engine with requests that are queued, running, paused, unread or just submitted. A
 * sanitizer reports leaks. */
static void test_close_at_any_moment(void **state)
{
    (void)state;
    static struct run_result results[20];
    for (int round = 0; round < 12; round++) {
        struct engine_config cfg = run_config("q4_1");
        cfg.max_concurrent = 4;
        struct engine *engine = run_open(&cfg);
        for (uint32_t i = 0; i < 20; i++) {
            struct engine_request req = run_simple(1 + i * 17, 1 + i * 9);
            req.sampling.n = 1 + i % 3;
            run_submit(engine, &req, &results[i]);
            if (i % 5 == 1)
                engine_pause(engine, results[i].id, true);
            if (i % 5 == 2)
                engine_cancel(engine, results[i].id);
        }
        run_sleep_ms(round * 2);
        if (round % 2)
            run_poll(engine);
        run_close(engine);
        for (uint32_t i = 0; i < 20; i++)
            run_result_fini(&results[i]);
    }
    engine_close(NULL);
}

static void test_open_bad_config_is_refused(void **state)
{
    (void)state;
    struct engine *engine = NULL;
    struct error err;
    static const struct {
        const char *field;
        uint32_t concurrent, queued, batch, chunk, block;
    } rows[] = {
        {"max_concurrent", 0, 1, 2, 1, 16},    {"max_queued", 1, 0, 2, 1, 16},
        {"max_batch_tokens", 1, 1, 1, 1, 16},  {"prefill_chunk_tokens", 1, 1, 2, 0, 16},
        {"max_concurrent", 5000, 1, 2, 1, 16}, {"kv_block_size", 1, 1, 2, 1, 24},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct engine_config cfg = run_config("q4_1");
        cfg.max_concurrent = rows[i].concurrent;
        cfg.max_queued = rows[i].queued;
        cfg.max_batch_tokens = rows[i].batch;
        cfg.prefill_chunk_tokens = rows[i].chunk;
        cfg.executor.kv_block_size = rows[i].block;
        assert_int_equal(engine_open(&cfg, &engine, &err), STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, rows[i].field);
    }
    struct engine_config cfg = run_config("q4_1");
    cfg.max_total_tokens = 1;
    assert_int_equal(engine_open(&cfg, &engine, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "max_total_tokens");
    cfg = run_config("q4_1");
    cfg.target_itl_ms = 60001;
    assert_int_equal(engine_open(&cfg, &engine, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "target_itl_ms");
    cfg = run_config("/no/such/file.gguf");
    assert_int_equal(engine_open(&cfg, &engine, &err), STATUS_NOT_FOUND);
    assert_null(engine);
    cfg = run_config("q4_1"); /* the pool's size is chosen */
    cfg.executor.kv_tokens = 0;
    engine = run_open(&cfg);
    assert_int_equal(engine_memory(engine)->kv_tokens, 32 * 512);
    assert_int_equal(engine_context_tokens(engine), 512);
    assert_true(chat_templates_can_chat(engine_chat_templates(engine)));
    assert_int_equal(chat_templates_error(engine_chat_templates(engine), 0)->status, 0);
    assert_int_equal(strlen(engine_weights_digest(engine)), 64);
    run_close(engine);
}

/* The caller has read the file's header and vocabulary and passes them on. The engine owns the
 * tokenizer, also where the open fails, and borrows the checkpoint. */
static void test_open_takes_the_tokenizer_and_borrows_the_checkpoint(void **state)
{
    (void)state;
    struct engine *engine = NULL;
    struct error err;
    struct engine_config cfg = run_config("q4_1");
    struct checkpoint *ckpt;
    assert_int_equal(checkpoint_open(cfg.model_path, &ckpt, &err), 0);
    cfg.checkpoint = ckpt;
    for (int good = 0; good < 3; good++) {
        assert_int_equal(tokenizer_open(ckpt, &cfg.tokenizer, &err), 0);
        cfg.max_concurrent = good ? 4 : 0;                /* refused before the file is read */
        cfg.executor.kv_block_size = good == 1 ? 24 : 16; /* refused */
        if (good < 2) {
            assert_int_equal(engine_open(&cfg, &engine, &err), STATUS_INVALID_ARGUMENT);
            continue;
        }
        const struct tokenizer *given = cfg.tokenizer;
        engine = run_open(&cfg);
        assert_ptr_equal(engine_tokenizer(engine), given);
        char digest[SHA256_HEX_BYTES];
        uint8_t bytes[SHA256_BYTES];
        checkpoint_digest(ckpt, bytes);
        sha256_hex(bytes, digest);
        assert_string_equal(engine_weights_digest(engine), digest);
        run_close(engine);
    }
    checkpoint_close(ckpt);
}

/* Several threads submit at once, and all counters must add up. (The thread sanitizer reports data
 * races.) */
static atomic_uint n_sent;

static void *submit_many(void *arg)
{
    struct engine *engine = arg;
    for (uint32_t i = 0; i < 60; i++) {
        struct engine_request req = run_simple(5 + i % 20, 1 + i % 9);
        struct engine_stats s;
        struct error err;
        uint64_t id;
        req.sampling.n = 1 + i % 2;
        req.user_data = UINT64_MAX;
        int rc = engine_submit(engine, &req, &id, &err);
        if (rc == STATUS_RESOURCE_EXHAUSTED) {
            run_sleep_ms(2);
            continue;
        }
        atomic_fetch_add(&n_sent, rc == 0);
        if (i % 4 == 0)
            engine_cancel(engine, id);
        if (i % 4 == 1)
            engine_pause(engine, id, true);
        if (i % 4 == 1)
            engine_pause(engine, id, false);
        if (i % 4 == 2)
            engine_update(engine, id, &(struct engine_update){.max_tokens = 12}, &err);
        engine_get_stats(engine, &s);
    }
    return NULL;
}

static void test_many_submitters_one_reader_books_balance(void **state)
{
    (void)state;
    enum { N_THREADS = 4 };
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_event_buffer *buffer;
    struct error err;
    pthread_t threads[N_THREADS];
    uint32_t n_ended = 0;
    bool joined = false;
    int64_t end = clock_now_ns() + 100 * NS_PER_S;
    assert_int_equal(engine_event_buffer_create(&buffer, &err), 0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, engine), 0);
    while (!joined || n_ended < atomic_load(&n_sent)) {
        const struct engine_event *events;
        size_t n = engine_read_events(engine, buffer, &events);
        for (size_t i = 0; i < n; i++)
            n_ended += events[i].type == ENGINE_EVENT_FINISHED && events[i].last;
        if (!joined &&
            run_stats(engine).n_submitted + run_stats(engine).n_refused == N_THREADS * 60) {
            for (int i = 0; i < N_THREADS; i++)
                pthread_join(threads[i], NULL);
            joined = true;
        }
        assert_true(clock_now_ns() < end);
        run_sleep_ms(1);
    }
    struct engine_stats s = run_stats(engine);
    assert_int_equal(s.n_submitted, n_ended);
    assert_int_equal(s.n_finished + s.n_cancelled, n_ended);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    assert_true(engine_is_idle(engine));
    engine_event_buffer_destroy(buffer);
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1000_cancels_give_all_blocks_back),
        cmocka_unit_test(test_cancel_takes_effect_within_a_step),
        cmocka_unit_test(test_full_queue_is_refused_and_recovers),
        cmocka_unit_test(test_slow_reader_gets_bigger_events_not_more),
        cmocka_unit_test(test_prompt_logprobs_take_no_prefix_hit),
        cmocka_unit_test(test_drain_refuses_new_and_finishes_old),
        cmocka_unit_test(test_close_at_any_moment),
        cmocka_unit_test(test_open_bad_config_is_refused),
        cmocka_unit_test(test_open_takes_the_tokenizer_and_borrows_the_checkpoint),
        cmocka_unit_test(test_keep_when_no_gpu_has_weights_then_refused_with_a_reason),
        cmocka_unit_test(test_many_submitters_one_reader_books_balance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
