/* work_pool.h: the request threads. Templates and tokenization run here, never on gRPC's threads
 * or the engine's loop. A bounded FIFO queue. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct work_pool;

/* *out_pool is owned. */
int work_pool_create(uint32_t n_threads, uint32_t max_queued, struct work_pool **out_pool,
                     struct error *err);
/* Runs the queued work, then ends the threads. NULL is accepted. */
void work_pool_destroy(struct work_pool *pool);

/* Runs fn(arg) later. RESOURCE_EXHAUSTED (reason QUEUE_FULL, retry_after_ms) if the queue is
 * full: fn is not called then. */
int work_pool_push(struct work_pool *pool, void (*fn)(void *arg), void *arg, struct error *err);
