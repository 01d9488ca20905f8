#include <math.h>

#include "clients/cli/bench/bench_random.h"
#include "tests/unit/base/support_cmocka.h"

static void test_a_seed_gives_the_same_numbers_and_another_others(void **state)
{
    (void)state;
    struct bench_random a, b, other_index, other_seed;
    bench_random_init(&a, 7, 3);
    bench_random_init(&b, 7, 3);
    bench_random_init(&other_index, 7, 4);
    bench_random_init(&other_seed, 8, 3);
    for (int i = 0; i < 100; i++) {
        uint64_t x = bench_random_u64(&a);
        assert_true(x == bench_random_u64(&b));
        assert_true(x != bench_random_u64(&other_index));
        assert_true(x != bench_random_u64(&other_seed));
    }
}

static void test_ranges_are_drawn_whole(void **state)
{
    (void)state;
    struct bench_random random;
    uint32_t counts[5] = {0};
    bench_random_init(&random, 1, 1);
    for (int i = 0; i < 5000; i++) {
        uint64_t x = bench_random_between(&random, 10, 14);
        assert_in_range(x, 10, 14);
        counts[x - 10]++;
    }
    for (int i = 0; i < 5; i++)
        assert_in_range(counts[i], 850, 1150);
    assert_int_equal(bench_random_between(&random, 9, 9), 9);
    bench_random_between(&random, 0,
                         UINT64_MAX); /* must not compute a range of 2^64, which overflows to 0 */
}

/* The gaps of a Poisson process: mean 1/rate, deviation as large, and a share of e^-1 longer than
 * the mean. */
static void test_arrivals_are_exponential(void **state)
{
    (void)state;
    static const double rates[] = {0.1, 4, 2500};
    enum { N = 40000 };
    for (size_t r = 0; r < sizeof(rates) / sizeof(rates[0]); r++) {
        struct bench_random random;
        double sum = 0, sum2 = 0, mean_ns = 1e9 / rates[r];
        int n_longer = 0;
        bench_random_init(&random, 5, r);
        for (int i = 0; i < N; i++) {
            int64_t ns = bench_random_arrival_ns(&random, rates[r]);
            assert_true(ns >= 1);
            sum += (double)ns / mean_ns;
            sum2 += pow((double)ns / mean_ns, 2);
            n_longer += (double)ns > mean_ns;
        }
        assert_true(fabs(sum / N - 1) < 0.02);
        assert_true(fabs(sqrt(sum2 / N - pow(sum / N, 2)) - 1) < 0.03);
        assert_true(fabs((double)n_longer / N - exp(-1)) < 0.01);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_gives_the_same_numbers_and_another_others),
        cmocka_unit_test(test_ranges_are_drawn_whole),
        cmocka_unit_test(test_arrivals_are_exponential),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
