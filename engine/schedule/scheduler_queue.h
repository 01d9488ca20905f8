/* scheduler_queue.h: waiting requests in serving order. The highest priority comes first. Within a
 * priority, the caller with the lowest share counter comes first (fair_share.h). Within a caller,
 * the order is that of arrival. Engine thread only. Allocates at create, never after; the list
 * links lie in the requests. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct fair_share;
struct request;
struct scheduler_queue;

/* `share` is borrowed until destroy; requests' i_caller are its entries. */
int scheduler_queue_create(uint32_t max_callers, const struct fair_share *share,
                           struct scheduler_queue **out_queue, struct error *err);
void scheduler_queue_destroy(struct scheduler_queue *queue);

void scheduler_queue_add(struct scheduler_queue *queue, struct request *request);
/* Removes a request that is in the queue. */
void scheduler_queue_remove(struct scheduler_queue *queue, struct request *request);
/* The next request in serving order, or NULL. `turn`: if not NULL, requests of the priority *turn
 * come first. */
struct request *scheduler_queue_peek(const struct scheduler_queue *queue, const int32_t *turn);
/* The first request in serving order that `fits` accepts, or NULL. `fits` is called only for
 * requests that come before the best request found so far. */
typedef bool scheduler_queue_fits_fn(void *ctx, struct request *request);
struct request *scheduler_queue_find(const struct scheduler_queue *queue, const int32_t *turn,
                                     scheduler_queue_fits_fn *fits, void *ctx);
struct request *scheduler_queue_oldest(const struct scheduler_queue *queue);
/* True if the caller has requests in the queue. */
bool scheduler_queue_has_caller(const struct scheduler_queue *queue, uint32_t i_caller);
/* The lowest share counter among callers whose first request has this priority or a higher one;
 * UINT64_MAX if there is none. */
uint64_t scheduler_queue_least(const struct scheduler_queue *queue, int32_t priority);
uint32_t scheduler_queue_len(const struct scheduler_queue *queue);
/* How many queued requests may generate SCHEDULER_LASTING_TOKENS or more. */
uint32_t scheduler_queue_n_lasting(const struct scheduler_queue *queue);
