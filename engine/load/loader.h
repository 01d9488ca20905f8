/* loader.h: reads a rank's share of a checkpoint and packs it, chunk by chunk of rows, into a
 * sealed memfd. The memory is position independent, so that another process (a replica, a restarted
 * worker) can map the same pages. No second copy of a tensor exists at any time. The file's pages
 * are dropped behind the reader.
 *
 *     memory: [struct packed_header][weight][weight]…   offsets as in struct rank_plan */
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

/* First bytes of packed memory. Native byte order: the memory never leaves the machine. */
struct packed_header {
    char magic[8]; /* "SLUICEPW" */
    uint32_t version, n_weights;
    uint64_t total_bytes;
    uint8_t digest[SHA256_BYTES]; /* digest of struct rank_plan */
};

enum loader_origin {
    LOADER_OWN,    /* packed here, in new memory */
    LOADER_FILLED, /* packed here, in memory that the parent process handed over */
    LOADER_MAPPED, /* packed by another process */
};

/* A rank's packed weights, mapped read-only. loader_unmap() frees them. */
struct packed_weights {
    int fd;           /* owned; sealed */
    const void *base; /* NULL: not mapped */
    uint64_t n_bytes;
    uint64_t huge_bytes; /* bytes of n_bytes in huge pages, as the kernel reports after packing */
    enum loader_origin origin;
};

struct loader_job {
    const struct model *model;
    const struct op_table *ops;
    const struct rank_plan *plans; /* [n_ranks] ranks of a stage: all hold the same layers */
    uint32_t n_ranks;
    uint32_t first_rank;            /* number of the first of these ranks, for progress */
    struct thread_pool *pool;       /* packing threads; the caller is one of them */
    executor_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
    const atomic_bool *cancel;  /* may be NULL */
    const uint16_t *rank_nodes; /* [n_ranks] memory node for each rank's new memory; NULL: any */
    /* [n_ranks] memory that the parent process handed over, borrowed; NULL: none */
    const int *shared_fds;
};

/* Fills and seals the memory of every rank, or maps shared memory that is filled already.
 * out_weights[n_ranks] are owned. All or nothing. Unusable shared memory is not an error: *out_why
 * (never NULL) gives the reason, and status 0 otherwise. CANCELLED if *cancel became true.
 * FAILED_PRECONDITION (MODEL_FILE_CHANGED) if the file changed during the load. RESOURCE_EXHAUSTED
 * without memory. */
int loader_load(const struct loader_job *job, struct packed_weights *out_weights,
                struct error *out_why, struct error *err);

/* Maps memory that another load filled and sealed. FAILED_PRECONDITION (reason PACKED_MISMATCH)
 * names the difference: seals, size, magic, version or digest. Takes `fd` on success. */
int loader_map_sealed(int fd, const struct rank_plan *plan, struct packed_weights *out_weights,
                      struct error *err);
/* A zeroed or already unmapped struct is allowed. */
void loader_unmap(struct packed_weights *weights);

/* The weight at a place of the plan. */
const struct weight *loader_weight(const struct packed_weights *weights,
                                   const struct weight_place *place);
