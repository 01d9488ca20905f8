/* bench_threads: the cost of a job of the CPU backend's thread team, by number of threads
 * (docs/log/2026-11-23-threads.md). A job is started and waited for. Three measurements:
 *
 * - an empty item per thread, in ns per job: median and 99th percentile of many jobs
 * - the same where no item ends before every thread has an item: a barrier of all threads and back
 * - a job of 100 µs of work per thread; the excess over 100 µs is the cost
 *
 * --burner runs a program of one busy thread beside the last measurement. --pin pins each thread to
 * a CPU.
 *
 *   bench_threads [--threads 2] [--burner] [--pin] */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/cpus.h"
#include "kernels/thread_pool.h"

enum { N_JOBS = 20000, N_WORK_JOBS = 2000, ITEMS_PER_THREAD = 8, WORK_NS = 100000 };

static atomic_bool burning;

static void *burn(void *arg)
{
    (void)arg;
    while (atomic_load_explicit(&burning, memory_order_relaxed))
        __builtin_ia32_pause();
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void nothing(void *job, uint32_t item, uint32_t member)
{
    (void)job;
    (void)item;
    (void)member;
}

struct meeting {
    uint32_t n_threads;
    _Atomic uint32_t n_met;
};

/* As each item waits for all, no thread gets two. */
static void meet(void *job, uint32_t item, uint32_t member)
{
    struct meeting *m = job;
    (void)item;
    (void)member;
    uint32_t before = atomic_fetch_add(&m->n_met, 1);
    uint32_t all = before - before % m->n_threads + m->n_threads;
    while (atomic_load_explicit(&m->n_met, memory_order_acquire) < all)
        __builtin_ia32_pause();
}

/* A fixed number of steps, so that a thread that was put aside has them still to do. */
static void work(void *job, uint32_t item, uint32_t member)
{
    const uint32_t *n_steps = job;
    (void)item;
    (void)member;
    for (uint32_t i = 0; i < *n_steps; i++)
        __builtin_ia32_pause();
}

/* Steps of work() that take WORK_NS / ITEMS_PER_THREAD: the fewest of several measurements. */
static uint32_t calibrate(void)
{
    uint32_t n = 1000;
    double best = 1e18;
    for (int i = 0; i < 50; i++) {
        int64_t start = clock_now_ns();
        work(&n, 0, 0);
        double ns = (double)(clock_now_ns() - start);
        best = ns < best ? ns : best;
    }
    return (uint32_t)(WORK_NS / (double)ITEMS_PER_THREAD / (best / n));
}

static void time_jobs(struct thread_pool *pool, uint32_t n_jobs, uint32_t n_items,
                      thread_pool_item_fn *fn, void *job, double *ns)
{
    for (uint32_t i = 0; i < n_jobs; i++) {
        int64_t start = clock_now_ns();
        thread_pool_run_items(pool, n_items, fn, job);
        ns[i] = (double)(clock_now_ns() - start);
    }
    qsort(ns, n_jobs, sizeof(*ns), by_size);
}

/* Pins each thread to its own CPU among the allowed CPUs. */
static int pin(struct thread_pool *pool, struct error *err)
{
    static struct cpus cpus[1024];
    struct cpus allowed;
    int rc = cpus_allowed(&allowed, err);
    uint32_t at = 0;
    for (uint32_t i = 0; i < thread_pool_size(pool); i++) {
        at = cpus_next(&allowed, at);
        at = at < CPUS_MAX ? at : cpus_next(&allowed, 0);
        cpus_add(&cpus[i], at++);
    }
    if (rc == 0)
        rc = thread_pool_confine(pool, cpus, err);
    return rc != 0 ? rc : cpus_confine(&cpus[0], err);
}

int main(int argc, char **argv)
{
    uint32_t n_threads = 2;
    bool pinned = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--burner") == 0)
            burning = true;
        else if (strcmp(argv[i], "--pin") == 0)
            pinned = true;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
    }
    pthread_t burner;
    struct error err = {0};
    struct thread_pool *pool;
    double *ns = malloc(N_JOBS * sizeof(*ns));
    uint32_t n_steps = calibrate();
    if (ns == NULL || thread_pool_create(n_threads, &pool, &err) != 0 ||
        (pinned && pin(pool, &err) != 0)) {
        fprintf(stderr, "bench_threads: %s\n", err.message);
        free(ns);
        return 1;
    }
    struct meeting meeting = {.n_threads = n_threads};
    bool has_burner = burning && pthread_create(&burner, NULL, burn, NULL) == 0;
    time_jobs(pool, N_JOBS, n_threads, nothing, NULL, ns);
    printf("%u threads%s%s: empty job %.0f ns, 99 %% %.0f ns", n_threads, pinned ? ", pinned" : "",
           has_burner ? ", a burner beside" : "", ns[N_JOBS / 2], ns[N_JOBS / 100 * 99]);
    time_jobs(pool, N_JOBS, n_threads, meet, &meeting, ns);
    printf("; barrier %.0f ns, 99 %% %.0f ns", ns[N_JOBS / 2], ns[N_JOBS / 100 * 99]);
    time_jobs(pool, N_WORK_JOBS, n_threads * ITEMS_PER_THREAD, work, &n_steps, ns);
    double sum = 0;
    for (int i = 0; i < N_WORK_JOBS; i++)
        sum += ns[i];
    printf("; 100 us of work per thread: median %.1f us, mean %.1f us, 99 %% %.1f us\n",
           ns[N_WORK_JOBS / 2] / 1e3, sum / N_WORK_JOBS / 1e3, ns[N_WORK_JOBS / 100 * 99] / 1e3);
    if (has_burner) {
        burning = false;
        pthread_join(burner, NULL);
    }
    thread_pool_destroy(pool);
    free(ns);
    return 0;
}
