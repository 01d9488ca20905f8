/* scheduler_queue.h: requests that wait, and who is next: the highest priority, and among callers
 * that have one of it, deficit round robin by tokens [Shreedhar and Varghese, SIGCOMM 1995]: over
 * time every caller gets the same share of tokens, whatever the sizes of its requests. Within a
 * caller and a priority, order of arrival. Engine thread only. Allocates at create, never after;
 * the links are the requests' own. */
#pragma once

#include <stdint.h>

struct error;
struct request;
struct scheduler_queue;

enum { SCHEDULER_QUEUE_QUANTUM = 1024 }; /* tokens a caller's turn adds */

int scheduler_queue_create(uint32_t max_requests, struct scheduler_queue **out_queue,
                           struct error *err);
void scheduler_queue_destroy(struct scheduler_queue *queue);

/* There is room: fewer than max_requests wait. */
void scheduler_queue_add(struct scheduler_queue *queue, struct request *request);
/* Takes out a request that waits here. */
void scheduler_queue_remove(struct scheduler_queue *queue, struct request *request);
/* Who is next, or NULL. The answer stays the same until something is added, removed or taken. */
struct request *scheduler_queue_peek(struct scheduler_queue *queue);
/* Takes out what peek returned and charges its caller. */
void scheduler_queue_take(struct scheduler_queue *queue, struct request *request);
uint32_t scheduler_queue_len(const struct scheduler_queue *queue);
