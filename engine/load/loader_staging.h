/* loader_staging.h: threads that move a rank's weights between its device and host memory, each
 * through two slices of pinned memory in turn, so that the bus is busy while the other slice is
 * filled or emptied. What a piece of the weights is, and what is done with it, is the caller's. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/load/loader_device.h"

struct error;
struct event;
struct stream;

/* A slice's bytes, about: large enough that a copy is at the bus's rate, small enough that all
 * threads' slices are little memory. */
enum { LOADER_STAGING_SLICE_BYTES = 2 << 20, LOADER_STAGING_SLOTS = 2 };

struct loader_staging_slot {
    unsigned char *slice; /* pinned, of as many bytes as were asked for */
    struct event *copied; /* recorded by the caller when a copy of the slice has been queued */
    unsigned char *host;  /* the caller's: where the slice goes once it has come; NULL at first */
    size_t n_bytes;       /* the caller's */
};

/* What one thread works with. */
struct loader_staging_hand {
    struct stream *stream;
    unsigned char *scratch; /* not pinned, on a cache line; NULL where none was asked for */
    struct loader_staging_slot slots[LOADER_STAGING_SLOTS];
    uint32_t i_slot;
};

struct loader_staging;

struct loader_staging_work {
    const struct loader_device_job *job; /* its cancel is looked at before each item */
    size_t slice_bytes, scratch_bytes;
    uint64_t n_items;
    const char *what; /* is cancelled: begins that error's message */
    /* By any thread, in order of `i`, many at once; on failure the others stop after theirs. */
    int (*item)(struct loader_staging *staging, struct loader_staging_hand *hand, uint64_t i,
                struct error *err);
    /* Before a slot is used again, and for each when a thread has no more items: the copy that was
     * queued has ended. NULL: nothing is to be done then. */
    void (*settled)(struct loader_staging *staging, struct loader_staging_slot *slot);
    void *ctx; /* the caller's */
};

/* All items, by job->n_threads threads, eight at most. The first error; CANCELLED where
 * *job->cancel became true. When it returns, no copy is under way. */
int loader_staging_run(const struct loader_staging_work *work, struct error *err);

/* For item(): */
void *loader_staging_ctx(const struct loader_staging *staging);
/* The next slot of a hand, which may be filled: what was queued of it has ended. */
int loader_staging_slot(struct loader_staging *staging, struct loader_staging_hand *hand,
                        struct loader_staging_slot **out_slot, struct error *err);
/* `rc` of queueing copies of the slot: records its event; on failure what the stream says. */
int loader_staging_queued(struct loader_staging *staging, struct loader_staging_hand *hand,
                          struct loader_staging_slot *slot, int rc, struct error *err);
/* So many more of plan->weights_bytes are done: tells job->progress. Any of its threads. */
void loader_staging_report(struct loader_staging *staging, uint64_t n_bytes);
