/* admit.h: whether a new request may enter: how many of its version wait, over all its replicas and
 * here, against the limit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct dispatch;
struct relay;

/* How full a version is. */
struct admit_fill {
    uint64_t n_waiting; /* for a replica or at one for a place, after those who wait have theirs */
    bool has_place;     /* some replica would run one more at once */
    bool is_behind;     /* somebody waits here whose turn is not after the relay's */
    bool has_room;      /* some replica would take one more, to run or to queue */
    double ends_per_ms;
};

/* Whether the request may enter; counts it as admitted. Under the admission lock, which the caller
 * holds on until the request is where it waits or runs. Errors: RESOURCE_EXHAUSTED QUEUE_FULL with
 * the time after which a retry is worth it, DEADLINE_EXCEEDED. */
int admit_request(struct dispatch *dispatch, struct relay *relay, struct admit_fill *out_fill,
                  struct error *err);

/* Whether the request's deadline is over, and says so in *err. No lock. */
bool admit_has_expired(const struct relay *relay, struct error *err);
