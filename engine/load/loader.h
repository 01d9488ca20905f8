/* loader.h: reads a rank's share of a checkpoint and packs it, row chunk by row chunk, into one
 * sealed memfd: position independent, so that another process (a replica, a restarted worker) maps
 * the same pages. No second copy of a tensor exists at any time, and the source's pages are dropped
 * behind the reader.
 *
 *     memory: [struct packed_header][weight][weight]…   offsets as struct rank_plan says
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine_config.h"
#include "engine/model/plan.h"

struct error;
struct model;
struct op_table;
struct thread_pool;

/* First bytes of packed memory. Native byte order: it never leaves the machine. */
struct packed_header {
    char magic[8]; /* "SLUICEPW" */
    uint32_t version, n_weights;
    uint64_t total_bytes;
    uint8_t digest[SHA256_BYTES]; /* struct rank_plan */
};

enum loader_origin {
    LOADER_OWN,    /* packed here, in memory of our own */
    LOADER_FILLED, /* packed here, in memory that was handed to us */
    LOADER_MAPPED, /* packed by another process */
};

/* A rank's packed weights, mapped read-only. loader_unmap() gives all back. */
struct packed_weights {
    int fd;           /* owned; sealed */
    const void *base; /* NULL: not mapped */
    uint64_t n_bytes;
    uint64_t huge_bytes; /* of them in huge pages, as the kernel tells after packing */
    enum loader_origin origin;
};

struct loader_job {
    const struct model *model;
    const struct op_table *ops;
    const struct rank_plan *plans; /* [n_ranks] */
    uint32_t n_ranks;
    struct thread_pool *pool;       /* the packing threads; the caller is one */
    executor_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
    const atomic_bool *cancel;  /* may be NULL */
    const uint16_t *rank_nodes; /* [n_ranks] that new memory is to lie on; NULL: not said */
    const int *shared_fds;      /* [n_ranks] memory handed to us, borrowed; NULL: none */
};

/* Fills and seals the memory of every rank, or maps what is in the shared memory already;
 * out_weights[n_ranks] are owned. All or nothing. Shared memory that cannot be used is no error:
 * *out_why (never NULL) says why, status 0: it is used or there is none.
 * CANCELLED where *cancel became true; FAILED_PRECONDITION (MODEL_FILE_CHANGED) where the file
 * changed meanwhile; RESOURCE_EXHAUSTED where memory ran out. */
int loader_load(const struct loader_job *job, struct packed_weights *out_weights,
                struct error *out_why, struct error *err);

/* Maps memory that another load filled and sealed. FAILED_PRECONDITION (reason PACKED_MISMATCH)
 * says what differs: not sealed, size, magic, version, digest. Takes `fd` on success. */
int loader_map_sealed(int fd, const struct rank_plan *plan, struct packed_weights *out_weights,
                      struct error *err);
/* A zeroed or already unmapped struct is allowed. */
void loader_unmap(struct packed_weights *weights);

/* The weight at a place of the plan. */
const struct weight *loader_weight(const struct packed_weights *weights,
                                   const struct weight_place *place);
