/* Tests of predicted waits: from measured rates, and by the callers in the queue. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/schedule/admission.h"

enum { N_WAITING = 100 };

static struct admission make(uint32_t n_places)
{
    struct admission a = {0};
    struct error err;
    assert_int_equal(admission_init(&a, N_WAITING, &err), 0);
    a.n_places = n_places;
    a.lowest = INT32_MAX;
    return a;
}

/* n requests of the caller wait for places. */
static void wait_for(struct admission *a, const char *caller, int32_t priority, uint32_t n,
                     uint32_t n_tokens)
{
    struct admission_entry entry = {admission_caller(caller), priority, n_tokens, true};
    for (uint32_t i = 0; i < n; i++)
        admission_set_entry(a, a->n_waiting + i, &entry);
    admission_set_n_waiting(a, a->n_waiting + n);
}

static int64_t ask(const struct admission *a, const char *caller, int32_t priority,
                   uint32_t n_prompt, uint32_t n_choices)
{
    struct admission_question q = {admission_caller(caller), priority, n_prompt, n_choices};
    return admission_predict_ns(a, &q);
}

static void test_nothing_measured_nothing_predicted(void **state)
{
    (void)state;
    struct admission a = {0};
    assert_int_equal(ask(&a, "", 0, 100000, 8), 0);
    assert_int_equal(admission_retry_ms(&a), 50);
}

static void test_prefill_rate_and_tokens_ahead(void **state)
{
    (void)state;
    struct admission a = make(0);
    for (int i = 0; i < 50; i++)
        admission_saw_step(&a, 256, 256, 256 * 20000); /* 20 µs per token */
    assert_int_equal(ask(&a, "", 0, 100, 1), 100 * 20000);
    wait_for(&a, "", 0, 3, 300);
    assert_int_equal(ask(&a, "", 0, 100, 1), 1000 * 20000);
    /* Steps of few prompt tokens, or mostly of decodes, say nothing. */
    admission_saw_step(&a, 8, 8, 1000000000);
    admission_saw_step(&a, 200, 40, 1000000000);
    assert_int_equal(ask(&a, "", 0, 100, 1), 1000 * 20000);
    for (int i = 0; i < 60; i++) /* the estimate follows a change */
        admission_saw_step(&a, 256, 256, 256 * 40000);
    int64_t now = ask(&a, "", 0, 100, 1);
    assert_true(now > 1000 * 39000 && now <= 1000 * 40000);
    admission_fini(&a);
}

static void test_places_taken_add_their_wait(void **state)
{
    (void)state;
    struct admission a = make(10);
    for (int i = 0; i < 50; i++)
        admission_saw_end(&a, 2 * NS_PER_S);
    a.n_used = 9;
    assert_int_equal(ask(&a, "", 0, 10, 1), 0);
    a.n_used = 10; /* a tenth of the places comes free every 200 ms */
    assert_int_equal(ask(&a, "", 0, 10, 1) / NS_PER_MS, 200);
    wait_for(&a, "", 0, 5, 0);
    assert_int_equal(ask(&a, "", 0, 10, 2) / NS_PER_MS, 1400);
    assert_int_equal(admission_retry_ms(&a), 200);
    admission_fini(&a);
}

/* Symptom: 80 queued requests of one caller made the deadlines of all callers unreachable. */
static void test_a_flood_refuses_its_own_caller_only(void **state)
{
    (void)state;
    struct admission a = make(10);
    for (int i = 0; i < 50; i++) {
        admission_saw_step(&a, 256, 256, 256 * 20000);
        admission_saw_end(&a, 2 * NS_PER_S);
    }
    a.n_used = 10;
    wait_for(&a, "flood", 0, 80, 1000);
    int64_t token = 20000, place = 200 * NS_PER_MS;
    assert_int_equal(ask(&a, "flood", 0, 100, 1), 80100 * token + 81 * place);
    /* A request of another caller waits only for an equal share of the flood. */
    assert_int_equal(ask(&a, "one", 0, 100, 1), 200 * token + 2 * place);
    wait_for(&a, "one", 0, 1, 300);
    assert_int_equal(ask(&a, "one", 0, 100, 1), (300 + 400 + 100) * token + 4 * place);
    /* All requests with a higher priority count, and none with a lower priority. */
    assert_int_equal(ask(&a, "two", 1, 100, 1), 100 * token + place);
    assert_int_equal(ask(&a, "two", -1, 100, 1), (80000 + 300 + 100) * token + 82 * place);
    admission_fini(&a);
}

/* A long prompt that the prefix cache has, like recent prompts of others, is not refused for its
 * length. Similar requests do not count its wait either. */
static void test_what_the_cache_has_is_not_counted(void **state)
{
    (void)state;
    struct admission a = make(0);
    for (int i = 0; i < 50; i++)
        admission_saw_step(&a, 256, 256, 256 * 20000);
    assert_int_equal(ask(&a, "", 0, 4100, 1), 4100 * 20000);
    admission_saw_start(&a, admission_caller(""), 4000);
    assert_int_equal(ask(&a, "", 0, 4100, 1), 100 * 20000);
    assert_int_equal(ask(&a, "another", 0, 4100, 1), 4100 * 20000);
    wait_for(&a, "", 0, 3, 4300);
    assert_int_equal(ask(&a, "", 0, 4100, 1), (3 * 300 + 100) * 20000);
    for (int i = 0; i < 300; i++) /* the estimate fades */
        admission_saw_start(&a, admission_caller(""), 0);
    assert_int_equal(ask(&a, "", 0, 4100, 1), (3 * 4300 + 4100) * 20000);
    admission_fini(&a);
}

/* A place of a lower priority is as good as a free one. */
static void test_places_of_lower_priorities_add_no_wait(void **state)
{
    (void)state;
    struct admission a = make(10);
    for (int i = 0; i < 50; i++)
        admission_saw_end(&a, 2 * NS_PER_S);
    a.n_used = 10;
    a.lowest = -3;
    a.n_lowest = 2;
    a.longest_prompt = 1000;
    assert_int_equal(ask(&a, "", -3, 10, 1) / NS_PER_MS, 200);
    assert_int_equal(ask(&a, "", -2, 10, 1), 0);
    assert_int_equal(ask(&a, "", -2, 1001, 1) / NS_PER_MS,
                     200); /* no place is freed for a prompt over longest_prompt */
    assert_int_equal(ask(&a, "", -2, 10, 3) / NS_PER_MS, 600);
    wait_for(&a, "", -2, 2, 0);
    assert_int_equal(ask(&a, "", -2, 10, 1) / NS_PER_MS, 600);
    admission_fini(&a);
}

/* A place of a caller with several places counts as free for a caller with none. */
static void test_places_of_callers_with_several_add_no_wait(void **state)
{
    (void)state;
    struct admission a = make(10);
    struct admission_entry runs = {admission_caller("many"), 0, 0, false};
    for (int i = 0; i < 50; i++)
        admission_saw_end(&a, 2 * NS_PER_S);
    a.n_used = 10;
    a.n_several = 2;
    a.longest_prompt = 1000;
    admission_set_entry(&a, 0, &runs);
    admission_set_n_waiting(&a, 1);
    assert_int_equal(ask(&a, "one", 0, 10, 1), 0);
    assert_int_equal(ask(&a, "one", -50, 10, 2), 0);
    assert_int_equal(ask(&a, "one", 0, 10, 3) / NS_PER_MS, 600);
    assert_int_equal(ask(&a, "one", 0, 1001, 1) / NS_PER_MS, 200);
    assert_int_equal(ask(&a, "many", 0, 10, 1) / NS_PER_MS, 200);
    assert_int_equal(ask(&a, "many", -50, 10, 1) / NS_PER_MS, 200);
    wait_for(&a, "two", 0, 2, 0); /* the caller "two" takes turns with "one" */
    assert_int_equal(ask(&a, "one", 0, 10, 1), 0);
    wait_for(&a, "three", 0, 1, 0);
    assert_int_equal(ask(&a, "one", 0, 10, 1) / NS_PER_MS, 600);
    wait_for(&a, "many", 0, 1,
             0); /* the request of "many" may start first and then lose its place */
    assert_int_equal(ask(&a, "one", 0, 10, 1) / NS_PER_MS, 800);
    a.n_several = 3;
    assert_int_equal(ask(&a, "one", 0, 10, 1), 0);
    admission_fini(&a);
}

static void test_extremes_do_not_overflow(void **state)
{
    (void)state;
    struct admission a = make(1);
    wait_for(&a, "", 100, N_WAITING, UINT32_MAX);
    wait_for(&a, "", -100, 1, UINT32_MAX); /* the table is full: this request is not counted */
    assert_int_equal(a.n_waiting, N_WAITING);
    admission_saw_step(&a, 16, 16, INT64_MAX);
    admission_saw_end(&a, INT64_MAX);
    assert_true(ask(&a, "", 100, UINT32_MAX, 8) > ask(&a, "", 100, UINT32_MAX / 2, 8));
    assert_true(ask(&a, NULL, -100, UINT32_MAX, 8) > 0);
    assert_int_equal(admission_retry_ms(&a), 30000);
    admission_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_measured_nothing_predicted),
        cmocka_unit_test(test_prefill_rate_and_tokens_ahead),
        cmocka_unit_test(test_places_taken_add_their_wait),
        cmocka_unit_test(test_a_flood_refuses_its_own_caller_only),
        cmocka_unit_test(test_what_the_cache_has_is_not_counted),
        cmocka_unit_test(test_places_of_lower_priorities_add_no_wait),
        cmocka_unit_test(test_places_of_callers_with_several_add_no_wait),
        cmocka_unit_test(test_extremes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
