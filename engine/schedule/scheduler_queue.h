/* scheduler_queue.h: requests that wait, and who is next: the highest priority; among callers that
 * have one of it, the one that has had least (fair_share.h); within a caller, order of arrival.
 * Engine thread only. Allocates at create, never after; the links are the requests' own. */
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
/* Takes out a request that waits here. */
void scheduler_queue_remove(struct scheduler_queue *queue, struct request *request);
/* Who is next, or NULL; `turn`: as if that priority were the highest, or NULL. */
struct request *scheduler_queue_peek(const struct scheduler_queue *queue, const int32_t *turn);
/* The first in that order that `fits` takes; it is asked of those alone that come before the best
 * one yet. */
typedef bool scheduler_queue_fits_fn(void *ctx, struct request *request);
struct request *scheduler_queue_find(const struct scheduler_queue *queue, const int32_t *turn,
                                     scheduler_queue_fits_fn *fits, void *ctx);
struct request *scheduler_queue_oldest(const struct scheduler_queue *queue);
/* Whether the caller has requests here. */
bool scheduler_queue_has_caller(const struct scheduler_queue *queue, uint32_t i_caller);
/* The lowest counter of callers with requests of this priority or a higher one; UINT64_MAX without
 * any. */
uint64_t scheduler_queue_least(const struct scheduler_queue *queue, int32_t priority);
uint32_t scheduler_queue_len(const struct scheduler_queue *queue);
/* How many of them may generate SCHEDULER_LASTING_TOKENS or more. */
uint32_t scheduler_queue_n_lasting(const struct scheduler_queue *queue);
