/* thread_pool.h: a fixed team that runs one short job at a time, for the CPU backend's ops. The
 * calling thread is member 0. One caller at a time.
 *
 * A job is a number of items. Each member begins with a run of neighbouring items of its own and,
 * when it has none left, takes from the end of another's run: a member that comes late, or that the
 * kernel has put aside, holds up nobody but by the one item in its hands. A job is done when its
 * items are, whoever did them. Handing one over and waiting for it costs well below a microsecond
 * (tests/bench/bench_threads.c). Members wait for the next job spinning, at most for about 50 µs,
 * then sleep in a futex: no core is burnt while idle. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct cpus;
struct error;
struct thread_pool;

/* A share of a job: called once for each index below n_threads, by any member; splits work by
 * (index, n_threads), which must not change results. */
typedef void thread_pool_fn(void *job, uint32_t index, uint32_t n_threads);

/* One item of a job; `member` is who runs it, below the size of the pool. */
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

/* Confines every member but the caller to cpus[its index] of cpus[size]; the caller confines
 * itself. Members that were confined before an error stay so. */
int thread_pool_confine(struct thread_pool *pool, const struct cpus *cpus, struct error *err);

/* Runs fn for every index, and returns when all are done. */
void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job);

/* Runs fn for every item, and returns when all are done. */
void thread_pool_run_items(struct thread_pool *pool, uint32_t n_items, thread_pool_item_fn *fn,
                           void *job);

/* Tells what the next job but the one that runs now will read, n ≤ THREAD_POOL_MAX_RANGES: whoever
 * waits fetches the beginning of its share (as runs of items are shared) into its own cache
 * meanwhile. A hint: nothing is read in the sense of the language, so it may be wrong or late. */
void thread_pool_will_read(struct thread_pool *pool, const struct thread_pool_range *ranges,
                           uint32_t n);

/* The [begin, end) share of n items, in multiples of `grain` (the last share takes the rest). */
void thread_pool_share(uint32_t n, uint32_t grain, uint32_t index, uint32_t n_threads,
                       uint32_t *out_begin, uint32_t *out_end);
