/* The team runs every job on every member exactly once, asleep or awake, crowded or not. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/system/cpus.h"
#include "kernels/thread_pool.h"
#include "tests/unit/kernels/support/support_kernels.h"

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

struct item_job {
    _Atomic uint8_t *calls;
    uint32_t n_items, n_members;
    _Atomic uint32_t wrong;
};

static void count_item(void *arg, uint32_t item, uint32_t member)
{
    struct item_job *job = arg;
    if (item >= job->n_items || member >= job->n_members)
        atomic_fetch_add(&job->wrong, 1);
    else
        atomic_fetch_add(&job->calls[item], 1);
}

static void test_items_are_run_once_each_however_many(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 2, 3, 7, 64, 1000, 65535, 65536, 200001};
    static _Atomic uint8_t calls[200001];
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct thread_pool *pool;
        struct error err = {0};
        assert_int_equal(thread_pool_create(n_threads, &pool, &err), 0);
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            struct item_job job = {.calls = calls, .n_items = counts[c], .n_members = n_threads};
            for (uint32_t i = 0; i < counts[c]; i++)
                calls[i] = 0;
            thread_pool_run_items(pool, counts[c], count_item, &job);
            for (uint32_t i = 0; i < counts[c]; i++)
                assert_int_equal(calls[i], 1);
            assert_int_equal(job.wrong, 0);
        }
        thread_pool_destroy(pool);
    }
}

/* The thread of item 0 holds the item until all others are done. */
static void hold_first_item(void *arg, uint32_t item, uint32_t member)
{
    struct item_job *job = arg;
    struct timespec pause = {0, 100000};
    count_item(arg, item, member);
    if (item != 0)
        return;
    for (uint32_t i = 1; i < job->n_items; i++)
        while (job->calls[i] == 0)
            nanosleep(&pause, NULL);
}

static void test_a_member_that_is_held_up_holds_up_its_item_alone(void **state)
{
    (void)state;
    struct thread_pool *pool;
    struct error err = {0};
    _Atomic uint8_t calls[100] = {0};
    struct item_job job = {.calls = calls, .n_items = 100, .n_members = 2};
    assert_int_equal(thread_pool_create(2, &pool, &err), 0);
    thread_pool_run_items(pool, job.n_items, hold_first_item, &job);
    for (uint32_t i = 0; i < job.n_items; i++)
        assert_int_equal(calls[i], 1);
    assert_int_equal(job.wrong, 0);
    thread_pool_destroy(pool);
}

/* Jobs follow each other with and without sleep between them, with forecasts at any time and of any
 * kind. Only the jobs' own results may show. */
static void test_forecasts_change_nothing(void **state)
{
    (void)state;
    struct thread_pool *pool;
    struct error err = {0};
    static uint8_t data[1 << 20];
    assert_int_equal(thread_pool_create(3, &pool, &err), 0);
    _Atomic uint8_t calls[10];
    struct item_job job = {.calls = calls, .n_items = 10, .n_members = 3};
    for (uint32_t round = 0; round < 3000; round++) {
        struct thread_pool_range ranges[THREAD_POOL_MAX_RANGES] = {
            {data, sizeof(data)}, {data + round, round}, {NULL, 4096}, {data, 0}};
        for (uint32_t i = 0; i < job.n_items; i++)
            calls[i] = 0;
        thread_pool_will_read(pool, ranges, round % (THREAD_POOL_MAX_RANGES + 1));
        thread_pool_run_items(pool, job.n_items, count_item, &job);
        for (uint32_t i = 0; i < job.n_items; i++)
            assert_int_equal(calls[i], 1);
        if (round % 300 == 0) {
            struct timespec pause = {0, 1000000};
            nanosleep(&pause, NULL);
        }
    }
    thread_pool_destroy(pool);
}

/* Idle threads of the pool use almost no CPU: less than a hundredth of the wall time. */
static void test_an_idle_pool_uses_no_cpu(void **state)
{
    (void)state;
    struct thread_pool *pool;
    struct error err = {0};
    _Atomic uint8_t calls[10] = {0};
    struct item_job job = {.calls = calls, .n_items = 10, .n_members = 2};
    assert_int_equal(thread_pool_create(2, &pool, &err), 0);
    thread_pool_run_items(pool, job.n_items, count_item, &job);
    struct timespec pause = {0, 20000000}, before, after;
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    pause.tv_nsec = 500000000;
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_ns =
        (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec;
    assert_true(used_ns < 5000000);
    thread_pool_destroy(pool);
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

/* Records the allowed CPUs of each member. Both items must be taken, so each waits for the other.
 */
struct where_job {
    struct cpus cpus[2];
    _Atomic uint32_t n_here;
};

static void tell_where(void *arg, uint32_t item, uint32_t member)
{
    struct where_job *job = arg;
    struct error err;
    (void)item;
    assert_int_equal(cpus_allowed(&job->cpus[member], &err), 0);
    atomic_fetch_add(&job->n_here, 1);
    while (atomic_load(&job->n_here) < 2)
        __builtin_ia32_pause();
}

static void test_members_stay_where_they_are_confined_to(void **state)
{
    (void)state;
    struct thread_pool *pool;
    struct error err = {0};
    struct cpus all, confined[2] = {{{0}}, {{0}}}, none[2] = {{{0}}, {{0}}};
    struct where_job job = {.n_here = 0};
    assert_int_equal(cpus_allowed(&all, &err), 0);
    confined[0] = all;
    cpus_add(&confined[1], cpus_next(&all, 0));
    assert_int_equal(thread_pool_create(2, &pool, &err), 0);
    assert_int_equal(thread_pool_confine(pool, confined, &err), 0);
    thread_pool_run_items(pool, 2, tell_where, &job);
    assert_true(cpus_equal(&job.cpus[0], &all)); /* the caller is not touched */
    assert_true(cpus_equal(&job.cpus[1], &confined[1]));
    assert_int_equal(thread_pool_confine(pool, none, &err), STATUS_INVALID_ARGUMENT);
    thread_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_runs_every_job_once),
        cmocka_unit_test(test_items_are_run_once_each_however_many),
        cmocka_unit_test(test_a_member_that_is_held_up_holds_up_its_item_alone),
        cmocka_unit_test(test_forecasts_change_nothing),
        cmocka_unit_test(test_an_idle_pool_uses_no_cpu),
        cmocka_unit_test(test_bad_sizes_are_refused),
        cmocka_unit_test(test_shares_cover_everything_once_in_grains),
        cmocka_unit_test(test_members_stay_where_they_are_confined_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
