#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_process.h"
#include "base/strbuf.h"
#include "tests/unit/base/support_cmocka.h"

static const uint64_t bounds[] = {1000000, 10000000, 100000000};

enum { REQUESTS, RUNNING, LATENCY, OTHER_LATENCY, N_FAMILIES };

static const struct metric_spec specs[N_FAMILIES] = {
    {.name = "t_requests_total",
     .help = "Requests;\nby \\ model.",
     .type = METRIC_COUNTER,
     .labels = {"model", "code"}},
    {.name = "t_running", .help = "Running.", .type = METRIC_GAUGE},
    {.name = "t_latency_seconds",
     .help = "Latency.",
     .type = METRIC_HISTOGRAM,
     .labels = {"model"},
     .bounds = bounds,
     .n_bounds = 3,
     .unit = 1e-9},
    {.name = "other:latency_seconds",
     .help = "The same.",
     .type = METRIC_HISTOGRAM,
     .labels = {"model_name"},
     .alias_of = "t_latency_seconds"},
};

struct fixture {
    struct metrics *metrics;
    struct metrics_family *families[N_FAMILIES];
};

static void collect(void *arg, struct metrics_sink *sink)
{
    struct fixture *f = arg;
    metrics_sample(sink, f->families[RUNNING], NULL, 2.5);
}

static int make(void **state)
{
    struct error err;
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(metrics_create(&f->metrics, &err), 0);
    assert_int_equal(metrics_add(f->metrics, specs, N_FAMILIES, f->families, &err), 0);
    assert_int_equal(metrics_add_collector(f->metrics, collect, f, &err), 0);
    *state = f;
    return 0;
}

static int destroy(void **state)
{
    struct fixture *f = *state;
    metrics_destroy(f->metrics);
    free(f);
    return 0;
}

static char *render(struct fixture *f)
{
    struct strbuf out;
    strbuf_init(&out, 0);
    metrics_render(f->metrics, &out);
    return strbuf_take(&out);
}

static void test_text_is_the_exposition_format(void **state)
{
    struct fixture *f = *state;
    const char *const hostile[] = {"a\"b\\c\nd\xff", "OK"};
    const char *const model[] = {"m"};
    struct metric *requests = metrics_series(f->metrics, f->families[REQUESTS], hostile);
    struct metric *latency = metrics_series(f->metrics, f->families[LATENCY], model);
    metric_add(requests, 3);
    metric_observe(latency,
                   1000000); /* a value equal to a bound counts in the bucket of that bound */
    metric_observe(latency, 1000001);
    metric_observe_n(latency, 500000000, 2);
    char *text = render(f);
    assert_string_equal(text,
                        "# HELP t_requests_total Requests;\\nby \\\\ model.\n"
                        "# TYPE t_requests_total counter\n"
                        "t_requests_total{model=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\",code=\"OK\"} 3\n"
                        "# HELP t_running Running.\n"
                        "# TYPE t_running gauge\n"
                        "t_running 2.5\n"
                        "# HELP t_latency_seconds Latency.\n"
                        "# TYPE t_latency_seconds histogram\n"
                        "t_latency_seconds_bucket{model=\"m\",le=\"0.001\"} 1\n"
                        "t_latency_seconds_bucket{model=\"m\",le=\"0.01\"} 2\n"
                        "t_latency_seconds_bucket{model=\"m\",le=\"0.1\"} 2\n"
                        "t_latency_seconds_bucket{model=\"m\",le=\"+Inf\"} 4\n"
                        "t_latency_seconds_sum{model=\"m\"} 1.002000001\n"
                        "t_latency_seconds_count{model=\"m\"} 4\n"
                        "# HELP other:latency_seconds The same.\n"
                        "# TYPE other:latency_seconds histogram\n"
                        "other:latency_seconds_bucket{model_name=\"m\",le=\"0.001\"} 1\n"
                        "other:latency_seconds_bucket{model_name=\"m\",le=\"0.01\"} 2\n"
                        "other:latency_seconds_bucket{model_name=\"m\",le=\"0.1\"} 2\n"
                        "other:latency_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 4\n"
                        "other:latency_seconds_sum{model_name=\"m\"} 1.002000001\n"
                        "other:latency_seconds_count{model_name=\"m\"} 4\n");
    free(text);
    metric_release(requests);
    metric_release(latency);
}

static void test_series_leave_with_their_last_holder(void **state)
{
    struct fixture *f = *state;
    const char *const values[] = {"m", "OK"};
    struct metric *one = metrics_series(f->metrics, f->families[REQUESTS], values);
    struct metric *two = metrics_series(f->metrics, f->families[REQUESTS], values);
    assert_ptr_equal(one, two);
    metric_add(one, 1);
    metric_release(one);
    char *text = render(f);
    assert_non_null(strstr(text, "t_requests_total{model=\"m\",code=\"OK\"} 1\n"));
    free(text);
    metric_release(two);
    text = render(f);
    assert_null(strstr(text, "t_requests_total{"));
    free(text);
}

static void test_series_are_bounded_and_updates_of_none_do_nothing(void **state)
{
    struct fixture *f = *state;
    struct metric *all[METRIC_MAX_SERIES];
    char name[16];
    const char *const values[] = {name, "OK"};
    for (size_t i = 0; i < METRIC_MAX_SERIES; i++) {
        snprintf(name, sizeof(name), "m%zu", i);
        all[i] = metrics_series(f->metrics, f->families[REQUESTS], values);
        assert_non_null(all[i]);
    }
    snprintf(name, sizeof(name), "more");
    struct metric *over = metrics_series(f->metrics, f->families[REQUESTS], values);
    assert_null(over);
    metric_add(over, 1);
    metric_set(over, 1);
    metric_observe(over, 1);
    metric_release(over);
    for (size_t i = 0; i < METRIC_MAX_SERIES; i++)
        metric_release(all[i]);
}

static void test_specs_that_cannot_be_are_refused_by_name(void **state)
{
    static const uint64_t falling[] = {2, 2};
    static const struct metric_spec bad[] = {
        {.name = "9x", .help = "h", .type = METRIC_GAUGE},
        {.name = "a b", .help = "h", .type = METRIC_GAUGE},
        {.name = "no_help", .help = "", .type = METRIC_GAUGE},
        {.name = "counter", .help = "h", .type = METRIC_COUNTER},
        {.name = "gauge_total", .help = "h", .type = METRIC_GAUGE},
        {.name = "t_running", .help = "h", .type = METRIC_GAUGE},
        {.name = "le_label", .help = "h", .type = METRIC_GAUGE, .labels = {"le"}},
        {.name = "label", .help = "h", .type = METRIC_GAUGE, .labels = {"a-b"}},
        {.name = "falls", .help = "h", .type = METRIC_HISTOGRAM, .bounds = falling, .n_bounds = 2},
        {.name = "alias_nowhere", .help = "h", .type = METRIC_GAUGE, .alias_of = "nowhere"},
        {.name = "alias_type", .help = "h", .type = METRIC_GAUGE, .alias_of = "t_latency_seconds"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct error err;
        assert_int_equal(metrics_add(f->metrics, &bad[i], 1, NULL, &err), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, bad[i].name));
    }
}

enum { N_THREADS = 4, N_UPDATES = 20000 };

static void *update(void *arg)
{
    struct fixture *f = arg;
    const char *const values[] = {"m"};
    for (int i = 0; i < N_UPDATES; i++) {
        /* All threads create and release this series at the same time. */
        struct metric *latency = metrics_series(f->metrics, f->families[LATENCY], values);
        metric_observe(latency, (uint64_t)i * 10000);
        metric_release(latency);
    }
    return NULL;
}

static void test_updates_of_many_threads_are_all_counted_while_it_is_scraped(void **state)
{
    struct fixture *f = *state;
    const char *const values[] = {"m"};
    char wanted[64];
    pthread_t threads[N_THREADS];
    struct metric *held = metrics_series(f->metrics, f->families[LATENCY], values);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, update, f), 0);
    for (int i = 0; i < 20; i++)
        free(render(f));
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = render(f);
    snprintf(wanted, sizeof(wanted), "t_latency_seconds_count{model=\"m\"} %d\n",
             N_THREADS * N_UPDATES);
    assert_non_null(strstr(text, wanted));
    free(text);
    metric_release(held);
}

static void test_process_metrics_are_plausible(void **state)
{
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(metrics_process_add(f->metrics, "unit", &err), 0);
    char *text = render(f);
    const char *start = strstr(text, "\nprocess_start_time_seconds ");
    const char *resident = strstr(text, "\nprocess_resident_memory_bytes ");
    /* A sanitizer has a thread of its own. */
    assert_true(strstr(text, "\nprocess_threads 1\n") || strstr(text, "\nprocess_threads 2\n"));
    assert_non_null(strstr(text, "\nsluice_build_info{program=\"unit\","));
    assert_true(start && resident);
    double age = (double)clock_wall_ns() / 1e9 - strtod(strchr(start + 1, ' '), NULL);
    assert_true(age > -1 && age < 600);
    assert_true(strtod(strchr(resident + 1, ' '), NULL) > 500000);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text_is_the_exposition_format, make, destroy),
        cmocka_unit_test_setup_teardown(test_series_leave_with_their_last_holder, make, destroy),
        cmocka_unit_test_setup_teardown(test_series_are_bounded_and_updates_of_none_do_nothing,
                                        make, destroy),
        cmocka_unit_test_setup_teardown(test_specs_that_cannot_be_are_refused_by_name, make,
                                        destroy),
        cmocka_unit_test_setup_teardown(
            test_updates_of_many_threads_are_all_counted_while_it_is_scraped, make, destroy),
        cmocka_unit_test_setup_teardown(test_process_metrics_are_plausible, make, destroy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
