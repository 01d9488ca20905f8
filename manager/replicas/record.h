/* record.h: recording the observed state of a replica. Each record is one transaction: the
 * replica's row and its event. Loop thread only (the transaction itself runs on the store
 * thread). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "manager/slots/slot.h"

enum record_kind {
    RECORD_STARTING, /* LOADING with the next epoch, no pid yet */
    RECORD_PID,      /* the process has been started */
    RECORD_STATE,    /* the state that the worker reports */
    RECORD_RETRY,    /* PENDING until next_start_unix_ns */
    RECORD_FAIL,     /* FAILED, with reason */
    RECORD_DRAIN,    /* DRAINING */
    RECORD_STOP,     /* STOPPED */
    RECORD_ADOPT,    /* pid of a worker found running */
    RECORD_STALL,    /* the worker stalled or recovered */
    RECORD_WAKE,     /* LOADING: Wake goes to the parked worker */
};

struct record {
    enum record_kind kind;
    enum replica_state state; /* RECORD_STATE */
    enum reason reason;       /* RETRY, FAIL */
    int64_t at_ns;            /* RETRY: next start, of fleet_now_ns */
    bool stalled;             /* STALL */
};

/* True where a RETRY with this reason follows an end that a command asked for. */
bool record_is_asked_for(enum reason reason);

/* Submits the record. The slot is busy until the record is committed or refused. Pid, numerics
 * id and last error come from the slot at this moment. Ends with a call of
 * supervisor_record_done(). */
int record_submit(struct slot *slot, const struct record *record, struct error *err);
