/* thread_pool.h: a fixed team of threads that runs short jobs, a single job at a time, for the CPU
 * backend's ops. The calling thread is member 0. Calls must not overlap.
 * A job is a number of items. Each member starts with its own run of adjacent items. When the run
 * is empty, the member takes items from the ends of other members' runs. So a member that starts
 * late or loses its CPU delays only the item it is working on. A job is done when all items are
 * done. Starting a job and waiting for it costs well below a microsecond
 * (tests/bench/bench_threads.c). Members spin for at most about 50 µs for the next job, then sleep
 * in a futex. So an idle pool uses no CPU. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct cpus;
struct error;
struct thread_pool;

/* A share of a job. Called once for each index below n_threads, by any member. The function splits
 * its work by (index, n_threads); the split must not change results. */
typedef void thread_pool_fn(void *job, uint32_t index, uint32_t n_threads);

/* An item of a job; `member`, below the pool's size, is the index of the member that runs it. */
typedef void thread_pool_item_fn(void *job, uint32_t item, uint32_t member);

/* Memory that a job will read. */
struct thread_pool_range {
    const void *data;
    size_t n_bytes;
};

enum { THREAD_POOL_MAX_RANGES = 4 };

/* n_threads ≥ 1 counts the caller. *out_pool is owned. */
int thread_pool_create(uint32_t n_threads, struct thread_pool **out_pool, struct error *err);
void thread_pool_destroy(struct thread_pool *pool);
uint32_t thread_pool_size(const struct thread_pool *pool);

/* Confines member i to cpus[i] of cpus[size], except the caller, who confines itself. After an
 * error, members that were already confined stay confined. */
int thread_pool_confine(struct thread_pool *pool, const struct cpus *cpus, struct error *err);

/* Runs fn for every index; returns when all are done. */
void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job);

/* Runs fn for every item; returns when all are done. */
void thread_pool_run_items(struct thread_pool *pool, uint32_t n_items, thread_pool_item_fn *fn,
                           void *job);

/* Announces the memory that the job after the current one will read, n ≤ THREAD_POOL_MAX_RANGES. A
 * waiting member prefetches the beginning of its share into its own cache. Shares are split as
 * items are. The hint may be wrong or late, because prefetching never accesses memory in the sense
 * of C. */
void thread_pool_will_read(struct thread_pool *pool, const struct thread_pool_range *ranges,
                           uint32_t n);

/* The [begin, end) share of n items, in multiples of `grain` (the last share takes the rest). */
void thread_pool_share(uint32_t n, uint32_t grain, uint32_t index, uint32_t n_threads,
                       uint32_t *out_begin, uint32_t *out_end);
