#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics/histogram.h"
#include "base/strbuf.h"
#include "tests/unit/base/support_cmocka.h"

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t next_ns(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int64_t)exp((double)(*seed >> 40) / (double)(1 << 24) * 20); /* 1 ns to 0.5 s */
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* Each quantile differs from the sorted samples by at most half a bucket. */
static void test_quantiles_are_those_of_the_sorted_samples(void **state)
{
    (void)state;
    enum { N = 5000 };
    static struct histogram histogram;
    static int64_t samples[N];
    static const double quantiles[] = {0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
    uint64_t seed = 3;
    double sum = 0, sum2 = 0;
    for (int i = 0; i < N; i++) {
        samples[i] = next_ns(&seed);
        histogram_add(&histogram, samples[i]);
        sum += ms(samples[i]);
    }
    for (int i = 0; i < N; i++)
        sum2 += pow(ms(samples[i]) - sum / N, 2);
    qsort(samples, N, sizeof(samples[0]), by_size);
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++) {
        size_t rank = (size_t)ceil(quantiles[i] * N);
        double exact = ms(samples[rank ? rank - 1 : 0]);
        assert_true(fabs(histogram_ms(&histogram, quantiles[i]) - exact) <= 0.0011 * exact + 0.001);
    }
    assert_int_equal(histogram.n, N);
    assert_int_equal(histogram.min_ns, samples[0]);
    assert_int_equal(histogram.max_ns, samples[N - 1]);
    assert_true(fabs(histogram_mean_ms(&histogram) - sum / N) < 1e-9 * sum);
    assert_true(fabs(histogram_stddev_ms(&histogram) - sqrt(sum2 / (N - 1))) < 1e-6);
}

static void test_few_samples_and_none(void **state)
{
    (void)state;
    static struct histogram histogram;
    assert_true(histogram_ms(&histogram, 0.5) == 0 && histogram_mean_ms(&histogram) == 0);
    assert_true(histogram_stddev_ms(&histogram) == 0);
    histogram_add(&histogram, 5000000);
    assert_true(histogram_ms(&histogram, 0) == 5 && histogram_ms(&histogram, 0.99) == 5);
    assert_true(histogram_stddev_ms(&histogram) == 0);
    histogram_add_many(&histogram, 1000000, 3);
    histogram_add_many(&histogram, 77, 0);
    assert_int_equal(histogram.n, 4);
    assert_true(histogram_mean_ms(&histogram) == 2);
    assert_true(fabs(histogram_ms(&histogram, 0.75) - 1) < 0.0011);
    assert_true(histogram_ms(&histogram, 0.76) > 4.99);
}

static void test_what_is_beyond_the_buckets_is_kept_in(void **state)
{
    (void)state;
    static struct histogram histogram;
    histogram_add(&histogram, -5);
    histogram_add(&histogram, INT64_MAX);
    assert_int_equal(histogram.min_ns, 0);
    assert_int_equal(histogram.max_ns, INT64_MAX);
    assert_true(histogram_ms(&histogram, 0.5) <= 0.001);
    assert_true(histogram_ms(&histogram, 1) > 12.0 * 3600 * 1000);
}

static void test_merged_is_as_added_to_one(void **state)
{
    (void)state;
    static struct histogram parts[2], all, empty;
    uint64_t seed = 9;
    for (int i = 0; i < 100; i++) {
        int64_t ns = next_ns(&seed);
        histogram_add(&parts[i % 2], ns);
        histogram_add(&all, ns);
    }
    histogram_merge(&parts[0], &parts[1]);
    histogram_merge(&parts[0], &empty);
    assert_memory_equal(parts[0].counts, all.counts, sizeof(all.counts));
    assert_true(parts[0].n == all.n && parts[0].min_ns == all.min_ns);
    assert_true(parts[0].max_ns == all.max_ns);
    assert_true(fabs(parts[0].sum_ms - all.sum_ms) < 1e-6);
}

static void test_json(void **state)
{
    (void)state;
    static struct histogram histogram;
    struct strbuf out = {0};
    histogram_add_many(&histogram, 2000000, 2);
    histogram_json(&histogram, &out);
    assert_string_equal(strbuf_str(&out),
                        "{\"mean\": 2.000, \"stddev\": 0.000, \"min\": 2.000, \"p50\": 2.000, "
                        "\"p90\": 2.000, \"p99\": 2.000, \"max\": 2.000, \"n\": 2}");
    strbuf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles_are_those_of_the_sorted_samples),
        cmocka_unit_test(test_few_samples_and_none),
        cmocka_unit_test(test_what_is_beyond_the_buckets_is_kept_in),
        cmocka_unit_test(test_merged_is_as_added_to_one),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
