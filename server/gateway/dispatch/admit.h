/* admit.h: decides if a new request may enter. The number of waiting requests of its version is
 * compared with the limit. The number counts the queues of all replicas and the waiting list of
 * this server. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct dispatch;
struct relay;

/* Load of a version over all its replicas. */
struct admit_fill {
    uint64_t n_waiting; /* requests that wait here or at a replica, less those that the free
                         * places will take */
    bool has_place;     /* some replica would run another request at once */
    bool is_behind;     /* a waiting request of this server goes before this request */
    bool has_room;      /* some replica would accept another request, to run or to queue */
    double ends_per_ms;
};

/* Admits the request or refuses it, and counts it as admitted. The caller holds the admission
 * lock until the request waits or runs. Errors: DEADLINE_EXCEEDED, or RESOURCE_EXHAUSTED
 * (reason QUEUE_FULL) with the time after which a retry makes sense. */
int admit_request(struct dispatch *dispatch, struct relay *relay, struct admit_fill *out_fill,
                  struct error *err);

/* True if the request's deadline has passed; fills *err then. Takes no lock. */
bool admit_has_expired(const struct relay *relay, struct error *err);
