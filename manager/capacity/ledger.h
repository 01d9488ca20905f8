/* ledger.h: the memory that replicas take and were promised. A replica has a claim on each device
 * whose memory the replica takes. Each question about memory is a sum over claims. Claims are
 * derived from rows and slots at each call, so no claim outlives its cause. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/names.h"
#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

enum claim_phase {
    CLAIM_TO_COME,   /* no process yet */
    CLAIM_RETURNING, /* the process died; the next one will take what the last one took */
    CLAIM_WAKING,    /* on a GPU: a parked worker that will serve there */
    CLAIM_TAKING,    /* on a GPU: started, and has not taken its memory */
    CLAIM_HELD,      /* the process runs */
    CLAIM_COPYING,   /* the process makes a park copy, beyond its plan */
    CLAIM_KEPT,      /* a park copy that no parked worker has mapped; belongs to no replica */
};

struct claim {
    const char *replica_id;         /* NULL: CLAIM_KEPT */
    const pb_replica *row;          /* NULL: CLAIM_KEPT, or a process whose row is gone */
    char device[DEVICE_NAME_BYTES]; /* "cuda:0", "cpu:1"; empty: host memory of no known node */
    enum claim_phase phase;
    bool is_unsized; /* the process, or the one to come, has not reported its size */
    uint64_t planned_bytes, held_bytes;
    uint64_t shared_bytes, shared_id; /* part that claims with the same id share; id 0: none */
};

/* Which claims. A replica that is about to start sees the ledger without itself. A plan (but_id
 * NULL) sees all replicas. For a plan, parked workers that wait for Wake count with the memory that
 * they will take. Replicas that never started then count on the GPU where they will start. */
struct ledger_query {
    const char *device;      /* "cuda:0", "cpu:1"; NULL: the host memory as a whole */
    const char *but_id;      /* leaves this replica out */
    const pb_deployment *of; /* replicas of this deployment alone; NULL: all claims */
};

/* Calls `visit` for each claim, replicas in order of creation, CLAIM_KEPT last. A replica on
 * several CPU nodes has one claim on each, in equal parts. */
typedef void ledger_visit_fn(void *arg, const struct claim *claim);
void ledger_each(const struct fleet *fleet, const struct ledger_query *query,
                 ledger_visit_fn *visit, void *arg);

struct ledger_sum {
    uint64_t taken_bytes;    /* the larger of planned and held bytes of each claim */
    uint64_t held_bytes;     /* resident on the host, or allocated on the GPU */
    uint64_t promised_bytes; /* planned by claims with a size, and not yet held */
    uint32_t n_processes;    /* processes there or to return */
    uint32_t n_unsized;      /* replicas there or to come without a size */
    uint32_t n_taking;       /* processes that take their GPU memory now */
};

/* Sums the claims. Memory that several replicas share counts once in taken_bytes. */
struct ledger_sum ledger_sum(const struct fleet *fleet, const struct ledger_query *query);

/* The shared memory that a sum has counted already. A zeroed set is empty. */
struct ledger_shares {
    struct {
        uint64_t id;
        const char *owner; /* replica that counted the memory first; borrowed while in use */
    } shares[64];
    size_t n;
};
/* Returns `n_bytes`, or without `shared_bytes` where another owner has counted `id` (0: nothing
 * is shared). An owner has one claim for each device; all of them count. */
uint64_t ledger_count_once(struct ledger_shares *shares, const char *owner, uint64_t n_bytes,
                           uint64_t shared_bytes, uint64_t id);
