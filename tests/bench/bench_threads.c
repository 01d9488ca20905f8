/* bench_threads: what it costs to hand a job to the CPU backend's thread team and to wait for it
 * (docs/performance.md), by number of threads: an empty item per thread, in ns per job, median and
 * 99th percentile of many; and how long a job of 100 µs of work per thread takes, to be held
 * against those 100 µs, with a program of one busy thread beside it (--burner) and without.
 *
 *   bench_threads [--threads 2] [--burner] */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
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

int main(int argc, char **argv)
{
    uint32_t n_threads = 2;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--burner") == 0)
            burning = true;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
    }
    pthread_t burner;
    struct error err = {0};
    struct thread_pool *pool;
    double *ns = malloc(N_JOBS * sizeof(*ns));
    uint32_t n_steps = calibrate();
    if (ns == NULL || thread_pool_create(n_threads, &pool, &err) != 0) {
        fprintf(stderr, "bench_threads: %s\n", err.message);
        free(ns);
        return 1;
    }
    bool has_burner = burning && pthread_create(&burner, NULL, burn, NULL) == 0;
    time_jobs(pool, N_JOBS, n_threads, nothing, NULL, ns);
    printf("%u threads%s: empty job %.0f ns, 99 %% %.0f ns", n_threads,
           has_burner ? ", a burner beside" : "", ns[N_JOBS / 2], ns[N_JOBS / 100 * 99]);
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
