/* Requests that are paused or changed while they run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/engine/support/support_engine.h"

static void test_pause_keeps_still_and_resume_goes_on(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result whole, r, queued;
    struct engine_request req = run_simple(10, 200);
    run_submit(engine, &req, &whole);
    run_wait(engine, &whole, 1);
    run_slow_steps(2 * NS_PER_MS);
    run_submit(engine, &req, &r);
    run_wait_ids(engine, &r, 5);
    engine_pause(engine, r.id, true);
    engine_pause(engine, r.id, true);
    int64_t end = clock_now_ns() + 5 * NS_PER_S;
    while (!run_stats(engine).n_paused && clock_now_ns() < end)
        run_sleep_ms(1);
    run_poll(engine);
    uint32_t n = r.choices[0].n_ids;
    uint64_t n_steps = run_stats(engine).n_steps;
    run_sleep_ms(30);
    run_poll(engine);
    assert_int_equal(r.choices[0].n_ids, n);
    assert_int_equal(run_stats(engine).n_steps, n_steps);
    run_submit(engine, &req, &queued); /* the pause does not delay other requests */
    run_wait(engine, &queued, 1);
    engine_pause(engine, r.id, false);
    run_wait(engine, &r, 1);
    run_assert_same(&whole, &r, "paused");
    run_result_fini(&whole);
    run_result_fini(&r);
    run_result_fini(&queued);
    run_close(engine);
}

static void test_update_changes_limits_while_running(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result whole, r;
    struct error err;
    struct engine_update update = {.max_tokens = 120};
    struct engine_request req = run_simple(10, 300);
    req.sampling.frequency_penalty = 0.3f; /* the update must move the penalty's token counts too */
    run_submit(engine, &req, &whole);
    run_wait(engine, &whole, 1);

    req.stopping.max_tokens = 40;
    run_submit(engine, &req, &r);
    engine_pause(engine, r.id, true); /* the request must not end before the update */
    assert_int_equal(engine_update(engine, r.id, &update, &err), 0);
    engine_pause(engine, r.id, false);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].n_ids, 120);
    assert_memory_equal(r.choices[0].ids, whole.choices[0].ids, 120 * sizeof(uint32_t));
    assert_int_equal(engine_update(engine, r.id, &update, &err), STATUS_NOT_FOUND);
    run_result_fini(&r);

    req.stopping.max_tokens = 300;
    run_slow_steps(2 * NS_PER_MS);
    run_submit(engine, &req, &r);
    run_wait_ids(engine, &r, 3);
    update.max_tokens = 1;
    assert_int_equal(engine_update(engine, r.id, &update, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "update.max_tokens");
    update = (struct engine_update){.max_tokens = -1, .set_priority = true, .priority = 101};
    assert_int_equal(engine_update(engine, r.id, &update, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "update.priority");
    update.priority = 100;
    assert_int_equal(engine_update(engine, r.id, &update, &err), 0);
    run_poll(engine);
    update = (struct engine_update){.max_tokens = r.choices[0].n_ids + 20};
    assert_int_equal(engine_update(engine, r.id, &update, &err), 0);
    run_wait(engine, &r, 1);
    assert_true(r.choices[0].n_ids < 300);
    assert_int_equal(r.choices[0].reason, FINISH_LENGTH);
    assert_memory_equal(r.choices[0].ids, whole.choices[0].ids,
                        r.choices[0].n_ids * sizeof(uint32_t));
    run_result_fini(&r);
    run_result_fini(&whole);
    run_close(engine);
}

/* An update sets new stop strings. They match in text that is not yet released, and not in released
 * text. */
static void test_update_replaces_stop_strings(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result whole, r;
    struct error err;
    struct engine_request req = run_simple(10, 300);
    static const char *const absent[] = {"no such text"};
    const char *stop[1];
    char text[8] = "";
    req.sampling.n = 2;
    run_submit(engine, &req, &whole);
    run_wait(engine, &whole, 1);
    for (int had_stops = 0; had_stops < 2; had_stops++) {
        req.stopping.stop = absent;
        req.stopping.n_stop = (uint32_t)had_stops;
        run_slow_steps(5 * NS_PER_MS);
        run_submit(engine, &req, &r);
        run_wait_ids(engine, &r, 20);
        engine_pause(engine, r.id, true);
        /* Three bytes of what comes much later. */
        const char *late = whole.choices[0].text + whole.choices[0].n_text * 3 / 4;
        while (late[0] <= ' ' || late[1] <= ' ' || late[2] <= ' ') /* three whole characters */
            late++;
        memcpy(text, late, 3);
        stop[0] = text;
        struct engine_update update = {
            .max_tokens = -1, .replace_stop = true, .stop = stop, .n_stop = 1};
        assert_int_equal(engine_update(engine, r.id, &update, &err), 0);
        run_poll(engine);
        size_t n_before = r.choices[0].n_text;
        run_slow_steps(0);
        engine_pause(engine, r.id, false);
        run_wait(engine, &r, 1);
        for (uint32_t c = 0; c < 2; c++) {
            const struct run_choice *got = &r.choices[c], *w = &whole.choices[c];
            assert_memory_equal(got->text, w->text, got->n_text);
            if (got->reason != FINISH_STOP)
                continue;
            assert_string_equal(got->matched_stop, text);
            assert_memory_equal(w->text + got->n_text, text, 3);
        }
        assert_int_equal(r.choices[0].reason, FINISH_STOP);
        assert_true(r.choices[0].n_text + 3 >= n_before);
        run_result_fini(&r);
    }
    run_submit(engine, &req, &r);
    engine_pause(engine, r.id, true);
    stop[0] = "";
    struct engine_update bad = {.max_tokens = -1, .replace_stop = true, .stop = stop, .n_stop = 1};
    assert_int_equal(engine_update(engine, r.id, &bad, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "update.stop[0]");
    for (int i = 0; i < 50;
         i++) { /* many updates in a row: the last one counts, and no memory leaks */
        bad.n_stop = 0;
        assert_int_equal(engine_update(engine, r.id, &bad, &err), 0);
    }
    engine_pause(engine, r.id, false);
    run_wait(engine, &r, 1);
    run_assert_same(&r, &whole, "stop strings taken back");
    run_result_fini(&r);
    run_result_fini(&whole);
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pause_keeps_still_and_resume_goes_on),
        cmocka_unit_test(test_update_changes_limits_while_running),
        cmocka_unit_test(test_update_replaces_stop_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
