#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/metrics/metrics.h"
#include "base/strbuf.h"
#include "server/gateway/base/meter.h"
#include "sluice/v1/inference.pb-c.h"
#include "tests/unit/base/support_cmocka.h"

struct fixture {
    struct metrics *metrics;
    struct meters *meters;
};

static int make(void **state)
{
    struct error err;
    struct fixture *f = calloc(1, sizeof(*f));
    log_init("unit", LOG_LEVEL_ERROR, LOG_FORMAT_KV);
    assert_int_equal(metrics_create(&f->metrics, &err), 0);
    assert_int_equal(meters_create(f->metrics, &f->meters, &err), 0);
    *state = f;
    return 0;
}

static int destroy(void **state)
{
    struct fixture *f = *state;
    meters_destroy(f->meters);
    metrics_destroy(f->metrics);
    free(f);
    return 0;
}

/* Returns the value of a sample, or -1 where the text has no sample of that name and labels. */
static double value_of(struct fixture *f, const char *sample)
{
    struct strbuf out;
    char wanted[256];
    strbuf_init(&out, 0);
    metrics_render(f->metrics, &out);
    snprintf(wanted, sizeof(wanted), "\n%s ", sample);
    const char *at = strstr(strbuf_str(&out), wanted);
    double value = at ? strtod(at + strlen(wanted), NULL) : -1;
    strbuf_fini(&out);
    return value;
}

static struct request_meter come(struct fixture *f, const char *model, const char *version)
{
    struct request_meter request = {.arrived_ns = clock_now_ns()};
    meter_begin(f->meters, &request, model, version);
    return request;
}

static void end(struct fixture *f, struct request_meter *request, int status, int finish_reason)
{
    const struct meter_end how = {.status = status,
                                  .finish_reason = finish_reason,
                                  .reason = "",
                                  .request_id = "r",
                                  .caller = "c",
                                  .model = "m",
                                  .version = "1"};
    meter_end(f->meters, request, &how);
    if (request)
        meter_release_version(request->version);
}

#define V "{model=\"m\",version=\"1\"}"

static void test_books_follow_a_request(void **state)
{
    struct fixture *f = *state;
    struct version_meter *routed = meter_hold_version(f->meters, "m", "1");
    struct request_meter request = come(f, "m", "1"), other = come(f, "m", "1");
    assert_true(value_of(f, "sluice_requests_in_flight" V) == 2);
    meter_started(&request, 10, 4);
    meter_tokens(&request, 0, 1);
    meter_tokens(&request, 1, 1); /* the first token of another choice adds no gap */
    meter_tokens(&request, 0, 3);
    meter_tokens(&request, 0, 0);
    end(f, &request, STATUS_OK, SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP_STRING);
    end(f, &other, STATUS_DEADLINE_EXCEEDED, 0);
    assert_true(value_of(f, "sluice_requests_accepted_total" V) == 2);
    assert_true(value_of(f, "sluice_requests_in_flight" V) == 0);
    assert_true(value_of(f, "sluice_requests_finished_total{model=\"m\",version=\"1\",code=\"OK\","
                            "finish_reason=\"stop_string\"}") == 1);
    assert_true(value_of(f, "sluice_requests_finished_total{model=\"m\",version=\"1\","
                            "code=\"DEADLINE_EXCEEDED\",finish_reason=\"\"}") == 1);
    assert_true(value_of(f, "sluice_generated_tokens_total" V) == 5);
    assert_true(value_of(f, "sluice_prompt_tokens_total" V) == 10);
    assert_true(value_of(f, "sluice_cached_prompt_tokens_total" V) == 4);
    assert_true(value_of(f, "sluice_time_to_first_token_seconds_count" V) == 1);
    assert_true(value_of(f, "sluice_inter_token_seconds_count" V) == 3);
    assert_true(value_of(f, "sluice_request_seconds_count" V) == 2);
    meter_release_version(routed);
}

static void test_requests_without_a_version_have_books_too(void **state)
{
    struct fixture *f = *state;
    meter_begin(f->meters, NULL, "", "");
    end(f, NULL, STATUS_INVALID_ARGUMENT, 0);
    struct request_meter request = come(f, "", "");
    assert_true(value_of(f, "sluice_requests_in_flight{model=\"\",version=\"\"}") == 1);
    end(f, &request, STATUS_NOT_FOUND, 0);
    assert_true(value_of(f, "sluice_requests_accepted_total{model=\"\",version=\"\"}") == 2);
    assert_true(value_of(f, "sluice_requests_in_flight{model=\"\",version=\"\"}") == 0);
    assert_true(value_of(f, "sluice_requests_finished_total{model=\"\",version=\"\","
                            "code=\"NOT_FOUND\",finish_reason=\"\"}") == 1);
}

/* Unloaded versions leave /metrics, but not while one of their requests runs. A replica that is
 * absent for a moment does not reset the counts. */
static void test_a_version_is_there_as_long_as_anybody_holds_it(void **state)
{
    struct fixture *f = *state;
    struct version_meter *routed = meter_hold_version(f->meters, "m", "1");
    struct version_meter *linked = meter_hold_version(f->meters, "m", "1");
    assert_ptr_equal(routed, linked);
    struct request_meter request = come(f, "m", "1");
    meter_release_version(linked);
    assert_true(value_of(f, "sluice_requests_accepted_total" V) == 1);
    linked = meter_hold_version(f->meters, "m", "1");
    assert_ptr_equal(routed, linked);
    meter_release_version(linked);
    meter_release_version(routed);
    assert_true(value_of(f, "sluice_requests_in_flight" V) == 1);
    end(f, &request, STATUS_OK, 0);
    assert_true(value_of(f, "sluice_requests_accepted_total" V) == -1);
    assert_true(value_of(f, "sluice_request_seconds_count" V) == -1);
}

/* Adds the growth of a worker's totals since the link began. A worker may restart its count; the
 * shown total never falls. */
static void test_totals_of_a_worker_are_added_as_they_grow(void **state)
{
    static const struct {
        uint64_t told, shown;
    } rows[] = {{100, 0}, {105, 5}, {105, 5}, {112, 12}, {3, 12}, {4, 13}};
    struct fixture *f = *state;
    struct version_meter *meter = meter_hold_version(f->meters, "m", "1");
    struct load_totals last = {.known = false};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct load_totals now = {.n_preemptions = rows[i].told,
                                  .n_prefix_query_tokens = rows[i].told,
                                  .n_prefix_hit_tokens = rows[i].told,
                                  .n_snapshot_hits = rows[i].told,
                                  .n_snapshot_evictions = 2 * rows[i].told};
        meter_load(meter, &last, &now);
        assert_true(value_of(f, "sluice_preemptions_total" V) == (double)rows[i].shown);
        assert_true(value_of(f, "sluice_prefix_hit_tokens_total" V) == (double)rows[i].shown);
        assert_true(value_of(f, "sluice_state_snapshot_hits_total" V) == (double)rows[i].shown);
        assert_true(value_of(f, "sluice_state_snapshot_evictions_total" V) ==
                    2 * (double)rows[i].shown);
    }
    meter_load(NULL, &last, &last);
    meter_release_version(meter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_books_follow_a_request, make, destroy),
        cmocka_unit_test_setup_teardown(test_requests_without_a_version_have_books_too, make,
                                        destroy),
        cmocka_unit_test_setup_teardown(test_a_version_is_there_as_long_as_anybody_holds_it, make,
                                        destroy),
        cmocka_unit_test_setup_teardown(test_totals_of_a_worker_are_added_as_they_grow, make,
                                        destroy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
