/* Predictions from measured rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/admission.h"

static void test_nothing_measured_nothing_predicted(void **state)
{
    (void)state;
    struct admission a = {0};
    assert_int_equal(admission_predict_ns(&a, 100000, 8), 0);
    assert_int_equal(admission_retry_ms(&a), 50);
}

static void test_prefill_rate_and_tokens_ahead(void **state)
{
    (void)state;
    struct admission a = {0};
    for (int i = 0; i < 50; i++)
        admission_saw_step(&a, 256, 256, 256 * 20000); /* 20 µs per token */
    assert_int_equal(admission_predict_ns(&a, 100, 1), 100 * 20000);
    a.tokens_ahead = 900;
    assert_int_equal(admission_predict_ns(&a, 100, 1), 1000 * 20000);
    /* Steps of few prompt tokens, or mostly of decodes, say nothing. */
    admission_saw_step(&a, 8, 8, 1000000000);
    admission_saw_step(&a, 200, 40, 1000000000);
    assert_int_equal(admission_predict_ns(&a, 100, 1), 1000 * 20000);
    for (int i = 0; i < 60; i++) /* it follows a change */
        admission_saw_step(&a, 256, 256, 256 * 40000);
    int64_t now = admission_predict_ns(&a, 100, 1);
    assert_true(now > 1000 * 39000 && now <= 1000 * 40000);
}

static void test_places_taken_add_their_wait(void **state)
{
    (void)state;
    struct admission a = {0};
    a.n_places = 10;
    for (int i = 0; i < 50; i++)
        admission_saw_end(&a, 2 * NS_PER_S);
    a.n_used = 9;
    assert_int_equal(admission_predict_ns(&a, 10, 1), 0);
    a.n_used = 10; /* one of ten comes free every 200 ms */
    assert_int_equal(admission_predict_ns(&a, 10, 1) / NS_PER_MS, 200);
    a.requests_ahead = 5;
    assert_int_equal(admission_predict_ns(&a, 10, 2) / NS_PER_MS, 1400);
    assert_int_equal(admission_retry_ms(&a), 200);
}

static void test_extremes_do_not_overflow(void **state)
{
    (void)state;
    struct admission a = {0};
    a.n_places = 1;
    a.tokens_ahead = UINT64_MAX / 1024;
    admission_saw_step(&a, 16, 16, INT64_MAX);
    admission_saw_end(&a, INT64_MAX);
    a.requests_ahead = UINT32_MAX;
    assert_true(admission_predict_ns(&a, UINT32_MAX, 8) > 0);
    assert_int_equal(admission_retry_ms(&a), 30000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_measured_nothing_predicted),
        cmocka_unit_test(test_prefill_rate_and_tokens_ahead),
        cmocka_unit_test(test_places_taken_add_their_wait),
        cmocka_unit_test(test_extremes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
