/* thread_pool.h: a fixed team that runs one short job at a time, for the CPU backend's ops. The
 * calling thread is member 0. One caller at a time. Members spin briefly for the next job, then
 * sleep in a futex: no core is burnt while idle. */
#pragma once

#include <stdint.h>

struct error;
struct thread_pool;

/* A share of a job: called once per member with its index; splits work by (index, n_threads), which
 * must not change results. */
typedef void thread_pool_fn(void *job, uint32_t index, uint32_t n_threads);

/* n_threads ≥ 1 counts the caller. *out_pool is owned. */
int thread_pool_create(uint32_t n_threads, struct thread_pool **out_pool, struct error *err);
void thread_pool_destroy(struct thread_pool *pool);
uint32_t thread_pool_size(const struct thread_pool *pool);

/* Runs fn on every member and returns when all are done. */
void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job);

/* The [begin, end) share of n items, in multiples of `grain` (the last share takes the rest). */
void thread_pool_share(uint32_t n, uint32_t grain, uint32_t index, uint32_t n_threads,
                       uint32_t *out_begin, uint32_t *out_end);
