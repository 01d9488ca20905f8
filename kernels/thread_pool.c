#include "kernels/thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "base/error.h"
#include "kernels/futex.h"

/* About 50 µs: longer than the gaps between the ops of a step, shorter than a gap between steps. */
enum { N_SPINS = 2000, N_SPINS_OVERCOMMITTED = 50, MAX_THREADS = 1024, CACHE_LINE = 64 };

struct member {
    struct thread_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct thread_pool {
    uint32_t n_threads, n_spins;
    thread_pool_fn *fn; /* written before `epoch` moves */
    void *job;
    bool stop;
    struct member *members;                       /* [n_threads - 1] */
    _Alignas(CACHE_LINE) _Atomic uint32_t epoch;  /* counts jobs; members wait for it to move */
    _Atomic uint32_t n_sleeping;                  /* members inside the futex */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_busy; /* members that have not finished the job */
    _Atomic uint32_t caller_sleeps;
};

/* Waits until *word differs from `old`. */
static void wait_for_epoch(struct thread_pool *pool, uint32_t old)
{
    for (uint32_t i = 0; i < pool->n_spins; i++) {
        if (atomic_load_explicit(&pool->epoch, memory_order_acquire) != old)
            return;
        __builtin_ia32_pause();
    }
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (atomic_load(&pool->epoch) == old)
        futex_wait(&pool->epoch, old);
    atomic_fetch_sub(&pool->n_sleeping, 1);
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct thread_pool *pool = member->pool;
    uint32_t epoch = 0;
    for (;;) {
        wait_for_epoch(pool, epoch);
        epoch++;
        if (pool->stop)
            return NULL;
        pool->fn(pool->job, member->index, pool->n_threads);
        if (atomic_fetch_sub(&pool->n_busy, 1) == 1 && atomic_load(&pool->caller_sleeps))
            futex_wake_all(&pool->n_busy);
    }
}

/* Publishes fn, job and stop to the members. */
static void next_epoch(struct thread_pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_sleeping) != 0)
        futex_wake_all(&pool->epoch);
}

static void wait_for_members(struct thread_pool *pool)
{
    for (uint32_t i = 0; i < pool->n_spins; i++) {
        if (atomic_load_explicit(&pool->n_busy, memory_order_acquire) == 0)
            return;
        __builtin_ia32_pause();
    }
    atomic_store(&pool->caller_sleeps, 1);
    for (uint32_t busy; (busy = atomic_load(&pool->n_busy)) != 0;)
        futex_wait(&pool->n_busy, busy);
    atomic_store(&pool->caller_sleeps, 0);
}

int thread_pool_create(uint32_t n_threads, struct thread_pool **out_pool, struct error *err)
{
    if (n_threads == 0 || n_threads > MAX_THREADS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "thread pool: %u threads, limit 1..%d",
                         n_threads, MAX_THREADS);
    struct thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof(*pool));
    struct member *members = calloc(n_threads, sizeof(*members));
    if (pool == NULL || members == NULL) {
        free(pool);
        free(members);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "thread pool: out of memory");
    }
    *pool = (struct thread_pool){
        .n_threads = 1,
        .n_spins = n_threads <= (uint32_t)cpu_count() ? N_SPINS : N_SPINS_OVERCOMMITTED,
        .members = members,
    };
    for (uint32_t i = 1; i < n_threads; i++) {
        struct member *member = &members[i - 1];
        *member = (struct member){.pool = pool, .index = i};
        int rc = pthread_create(&member->thread, NULL, member_main, member);
        if (rc != 0) {
            thread_pool_destroy(pool);
            return error_errno(err, rc, "thread pool: thread %u of %u", i, n_threads);
        }
        pool->n_threads++;
    }
    *out_pool = pool;
    return 0;
}

void thread_pool_destroy(struct thread_pool *pool)
{
    if (pool == NULL)
        return;
    pool->stop = true;
    next_epoch(pool);
    for (uint32_t i = 1; i < pool->n_threads; i++)
        pthread_join(pool->members[i - 1].thread, NULL);
    free(pool->members);
    free(pool);
}

uint32_t thread_pool_size(const struct thread_pool *pool)
{
    return pool->n_threads;
}

void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job)
{
    if (pool->n_threads == 1) {
        fn(job, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->job = job;
    atomic_store_explicit(&pool->n_busy, pool->n_threads - 1, memory_order_relaxed);
    next_epoch(pool);
    fn(job, 0, pool->n_threads);
    wait_for_members(pool);
}

void thread_pool_share(uint32_t n, uint32_t grain, uint32_t index, uint32_t n_threads,
                       uint32_t *out_begin, uint32_t *out_end)
{
    uint64_t n_grains = n / grain;
    uint64_t begin = n_grains * index / n_threads * grain,
             end = n_grains * (index + 1) / n_threads * grain;
    *out_begin = (uint32_t)begin;
    *out_end = index + 1 == n_threads ? n : (uint32_t)end;
}
