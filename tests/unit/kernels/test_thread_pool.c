/* The team runs every job on every member exactly once, asleep or awake, crowded or not. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "kernels/thread_pool.h"
#include "support_kernels.h"

struct count_job {
    _Atomic uint32_t calls[16];
    uint32_t n_threads;
    _Atomic uint32_t wrong;
};

static void count_call(void *arg, uint32_t index, uint32_t n_threads)
{
    struct count_job *job = arg;
    if (n_threads != job->n_threads || index >= n_threads)
        atomic_fetch_add(&job->wrong, 1);
    else
        atomic_fetch_add(&job->calls[index], 1);
}

static void test_every_member_runs_every_job_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 7; n += 2) {
        struct thread_pool *pool;
        struct error err = {0};
        assert_int_equal(thread_pool_create(n, &pool, &err), 0);
        assert_int_equal(thread_pool_size(pool), n);
        struct count_job job = {.n_threads = n};
        uint32_t rounds = n <= 2 ? 20000 : 2000;
        for (uint32_t i = 0; i < rounds; i++) {
            thread_pool_run(pool, count_call, &job);
            for (uint32_t m = 0; m < n; m++) /* all done when run returns */
                assert_int_equal(job.calls[m], i + 1);
            if (i % 500 == 0) { /* long enough for the members to fall asleep */
                struct timespec pause = {0, 2000000};
                nanosleep(&pause, NULL);
            }
        }
        assert_int_equal(job.wrong, 0);
        thread_pool_destroy(pool);
    }
    thread_pool_destroy(NULL);
}

static void test_bad_sizes_are_refused(void **state)
{
    (void)state;
    struct thread_pool *pool = NULL;
    struct error err = {0};
    assert_int_equal(thread_pool_create(0, &pool, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(thread_pool_create(100000, &pool, &err), STATUS_INVALID_ARGUMENT);
    assert_null(pool);
}

static void test_shares_cover_everything_once_in_grains(void **state)
{
    (void)state;
    static const uint32_t grains[] = {1, 4, 16, 64};
    for (uint32_t n = 0; n < 300; n += 7)
        for (int g = 0; g < 4; g++)
            for (uint32_t threads = 1; threads < 9; threads++) {
                uint32_t at = 0;
                for (uint32_t i = 0; i < threads; i++) {
                    uint32_t begin, end;
                    thread_pool_share(n, grains[g], i, threads, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && begin % grains[g] == 0);
                    at = end;
                }
                assert_int_equal(at, n);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_runs_every_job_once),
        cmocka_unit_test(test_bad_sizes_are_refused),
        cmocka_unit_test(test_shares_cover_everything_once_in_grains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
