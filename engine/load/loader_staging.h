/* loader_staging.h: threads that move a rank's weights between its device and host memory. Each
 * thread fills or empties one slice of pinned memory while the bus copies its other slice. The
 * caller cuts the weights into items and moves each item. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/load/loader_device.h"

struct error;
struct event;
struct stream;

/* Approximate bytes of a slice: large enough for the full rate of the bus, small enough for all
 * slices together. */
enum { LOADER_STAGING_SLICE_BYTES = 2 << 20, LOADER_STAGING_SLOTS = 2 };

struct loader_staging_slot {
    unsigned char *slice; /* pinned; [slice_bytes] */
    struct event *copied; /* recorded behind the last queued copy of the slice */
    unsigned char *host;  /* the caller's: destination of a slice that is saved; NULL at first */
    size_t n_bytes;       /* for the caller's use */
};

/* Memory and stream of a thread. */
struct loader_staging_hand {
    struct stream *stream;
    unsigned char *scratch; /* [scratch_bytes] not pinned, aligned to a cache line; NULL for 0 */
    struct loader_staging_slot slots[LOADER_STAGING_SLOTS];
    uint32_t i_slot;
};

struct loader_staging;

struct loader_staging_work {
    const struct loader_device_job *job; /* its cancel is read before each item */
    size_t slice_bytes, scratch_bytes;
    uint64_t n_items;
    const char *what; /* subject of the CANCELLED error: "<what> is cancelled" */
    /* Moves item i. Runs on several threads at once. Items begin in order of i; after a failure no
     * item begins. */
    int (*item)(struct loader_staging *staging, struct loader_staging_hand *hand, uint64_t i,
                struct error *err);
    /* The slot's queued copy has ended: called before the slot's next use and at the thread's end.
     * May be NULL. */
    void (*settled)(struct loader_staging *staging, struct loader_staging_slot *slot);
    void *ctx; /* for the caller's use */
};

/* Moves all items on job->n_threads threads, at most eight. Returns the first error; CANCELLED if
 * *job->cancel became true. When it returns, no copy is in flight. */
int loader_staging_run(const struct loader_staging_work *work, struct error *err);

/* The following functions are for item(). */
void *loader_staging_ctx(const struct loader_staging *staging);
/* The hand's next slot; its last copy has ended, so the slice is free. */
int loader_staging_slot(struct loader_staging *staging, struct loader_staging_hand *hand,
                        struct loader_staging_slot **out_slot, struct error *err);
/* Records the slot's event behind its queued copies. `rc`: the status of queueing them. */
int loader_staging_queued(struct loader_staging *staging, struct loader_staging_hand *hand,
                          struct loader_staging_slot *slot, int rc, struct error *err);
/* Reports n_bytes more of plan->weights_bytes to job->progress. */
void loader_staging_report(struct loader_staging *staging, uint64_t n_bytes);
