#include "server/worker/base/work_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"

enum { RETRY_MS = 100 };

struct work {
    void (*fn)(void *arg);
    void *arg;
};

struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct work *queue; /* ring buffer of max_queued entries */
    uint32_t head, n_queued, max_queued;
    bool ending;
    uint32_t n_threads;
    pthread_t threads[];
};

static void *run(void *arg)
{
    struct work_pool *pool = arg;
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        while (!pool->n_queued && !pool->ending)
            pthread_cond_wait(&pool->changed, &pool->lock);
        if (!pool->n_queued) {
            pthread_mutex_unlock(&pool->lock);
            return NULL;
        }
        struct work work = pool->queue[pool->head];
        pool->head = (pool->head + 1) % pool->max_queued;
        pool->n_queued--;
        pthread_mutex_unlock(&pool->lock);
        work.fn(work.arg);
    }
}

int work_pool_create(uint32_t n_threads, uint32_t max_queued, struct work_pool **out_pool,
                     struct error *err)
{
    struct work_pool *pool = calloc(1, sizeof(*pool) + n_threads * sizeof(pthread_t));
    if (!pool || !(pool->queue = calloc(max_queued, sizeof(*pool->queue)))) {
        free(pool);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request threads: out of memory");
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    pool->max_queued = max_queued;
    for (uint32_t i = 0; i < n_threads; i++) {
        int rc = pthread_create(&pool->threads[i], NULL, run, pool);
        if (rc) {
            work_pool_destroy(pool);
            return error_errno(err, rc, "request threads");
        }
        pool->n_threads++;
    }
    *out_pool = pool;
    return 0;
}

void work_pool_destroy(struct work_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->queue);
    free(pool);
}

int work_pool_push(struct work_pool *pool, void (*fn)(void *arg), void *arg, struct error *err)
{
    pthread_mutex_lock(&pool->lock);
    bool room = pool->n_queued < pool->max_queued;
    if (room) {
        pool->queue[(pool->head + pool->n_queued) % pool->max_queued] = (struct work){fn, arg};
        pool->n_queued++;
        pthread_cond_signal(&pool->changed);
    }
    pthread_mutex_unlock(&pool->lock);
    if (room)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED, "%u requests wait for a request thread",
              pool->max_queued);
    err->retry_after_ms = RETRY_MS;
    return error_reason(err, REASON_QUEUE_FULL);
}
