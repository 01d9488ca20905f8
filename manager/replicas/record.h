/* record.h: writing down what is seen of a replica. One record is one transaction: the replica's
 * row and its event. Loop thread only (the transaction itself runs on the store thread). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/slots/slot.h"

enum record_kind {
    RECORD_STARTING, /* LOADING with the next epoch, no pid yet */
    RECORD_PID,      /* the process has been started */
    RECORD_STATE,    /* what the worker reports */
    RECORD_RETRY,    /* PENDING until next_start_unix_ns */
    RECORD_FAIL,     /* FAILED, with reason */
    RECORD_DRAIN,    /* DRAINING */
    RECORD_STOP,     /* STOPPED */
    RECORD_ADOPT,    /* pid of a worker found running */
    RECORD_STALL,    /* whether it stands still */
    RECORD_WAKE,     /* LOADING: the process that kept weights is told to serve */
};

struct record {
    enum record_kind kind;
    enum replica_state state; /* RECORD_STATE */
    const char *reason;       /* static; RETRY, FAIL */
    int64_t at_ns;            /* RETRY: next start, of fleet_now_ns */
    bool stalled;             /* STALL */
};

/* Whether a RETRY with this reason follows an end that somebody asked for. */
bool record_is_asked_for(const char *reason);

/* Submits it; the slot is busy until it is done. What the record says of the process (pid,
 * numerics, last error) is taken from the slot now. At the end
 * supervisor_record_done is called. */
int record_submit(struct slot *slot, const struct record *record, struct error *err);
