#include "manager/store/transition.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "manager/base/pb.h"

#define BIT(state) (1U << (state))

enum {
    N_REPLICA_STATES = REPLICA_FAILED + 1,
    N_OPERATION_STATES = OPERATION_CANCELLED + 1,
    N_UPDATE_PHASES = UPDATE_END + 1,
    /* States with a process, whose reported state is recorded. States may be skipped: a manager
     * that was away finds the process further on. */
    RUNS = BIT(REPLICA_LOADING) | BIT(REPLICA_WARMING) | BIT(REPLICA_READY) | BIT(REPLICA_PARKED) |
           BIT(REPLICA_DRAINING),
    ENDED = BIT(OPERATION_DONE) | BIT(OPERATION_FAILED) | BIT(OPERATION_CANCELLED),
};

/* Indexed by the state that is left; bits of the possible next states. STOPPED is final: another
 * replica takes its place. A command moves a FAILED replica on: retry or retire. */
static const unsigned replica_next[N_REPLICA_STATES] = {
    [0] = BIT(REPLICA_PENDING),
    [REPLICA_PENDING] = BIT(REPLICA_LOADING) | BIT(REPLICA_FAILED) | BIT(REPLICA_STOPPED),
    [REPLICA_LOADING] = RUNS | BIT(REPLICA_PENDING) | BIT(REPLICA_FAILED) | BIT(REPLICA_STOPPED),
    [REPLICA_WARMING] = BIT(REPLICA_LOADING) | BIT(REPLICA_READY) | BIT(REPLICA_DRAINING) |
                        BIT(REPLICA_PENDING) | BIT(REPLICA_FAILED) | BIT(REPLICA_STOPPED),
    [REPLICA_READY] = BIT(REPLICA_LOADING) | BIT(REPLICA_DRAINING) | BIT(REPLICA_PENDING) |
                      BIT(REPLICA_FAILED) | BIT(REPLICA_STOPPED),
    [REPLICA_PARKED] = RUNS | BIT(REPLICA_PENDING) | BIT(REPLICA_FAILED) | BIT(REPLICA_STOPPED),
    /* RUNS: a drain ends early where the quarantined device was released meanwhile. */
    [REPLICA_DRAINING] = RUNS | BIT(REPLICA_PENDING) | BIT(REPLICA_FAILED) | BIT(REPLICA_STOPPED),
    [REPLICA_FAILED] = BIT(REPLICA_PENDING) | BIT(REPLICA_STOPPED),
};

static const unsigned operation_next[N_OPERATION_STATES] = {
    [0] = BIT(OPERATION_PENDING) | BIT(OPERATION_RUNNING),
    [OPERATION_PENDING] = BIT(OPERATION_RUNNING) | ENDED,
    [OPERATION_RUNNING] = ENDED,
};

static const unsigned phase_next[N_UPDATE_PHASES] = {
    [0] = BIT(UPDATE_LOAD),
    [UPDATE_LOAD] = BIT(UPDATE_SHIFT) | BIT(UPDATE_ROLL_BACK),
    [UPDATE_SHIFT] = BIT(UPDATE_DRAIN) | BIT(UPDATE_ROLL_BACK),
    [UPDATE_DRAIN] = BIT(UPDATE_END),
    [UPDATE_ROLL_BACK] = BIT(UPDATE_END),
};

static bool may_follow(const unsigned *next, unsigned n, int from, int to)
{
    if (from < 0 || to <= 0 || (unsigned)from >= n || (unsigned)to >= n)
        return false;
    return from == to || (next[from] & BIT(to));
}

static int refuse_transition(struct error *err, const char *what, const char *id, const char *from,
                             const char *to)
{
    error_set(err, STATUS_INTERNAL, "%s %s: %s cannot become %s", what, id, from, to);
    return error_reason(err, REASON_ILLEGAL_TRANSITION);
}

static int check_replica(const pb_replica *before, const pb_replica *after, struct error *err)
{
    int from = before ? (int)before->state : 0;
    if (!may_follow(replica_next, N_REPLICA_STATES, from, (int)after->state))
        return refuse_transition(err, "replica", after->id,
                                 before ? pb_replica_state_name(from) : "a new one",
                                 pb_replica_state_name((int)after->state));
    if (!before || after->epoch >= before->epoch)
        return 0;
    error_set(err, STATUS_INTERNAL, "replica %s: epoch %" PRIu64 " cannot follow %" PRIu64,
              after->id, after->epoch, before->epoch);
    return error_reason(err, REASON_ILLEGAL_TRANSITION);
}

static int check_operation(const pb_operation *before, const pb_operation *after, struct error *err)
{
    static const char *const phases[N_UPDATE_PHASES] = {"none",  "LOAD",      "SHIFT",
                                                        "DRAIN", "ROLL_BACK", "END"};
    int from = before ? (int)before->state : 0;
    if (!may_follow(operation_next, N_OPERATION_STATES, from, (int)after->state))
        return refuse_transition(err, "operation", after->id,
                                 before ? pb_operation_state_name(from) : "a new one",
                                 pb_operation_state_name((int)after->state));
    if (!after->update)
        return 0;
    int phase = before && before->update ? (int)before->update->phase : 0;
    int next = (int)after->update->phase;
    if (may_follow(phase_next, N_UPDATE_PHASES, phase, next))
        return 0;
    bool known = next >= 0 && next < N_UPDATE_PHASES;
    return refuse_transition(err, "update", after->id, phases[phase],
                             known ? phases[next] : "another");
}

int transition_check(const struct row *before, const struct row *after, struct error *err)
{
    const ProtobufCMessage *old = before ? row_message(before) : NULL;
    switch (row_table(after)) {
    case TABLE_REPLICA:
        return check_replica((const pb_replica *)old, (const pb_replica *)row_message(after), err);
    case TABLE_OPERATION:
        return check_operation((const pb_operation *)old, (const pb_operation *)row_message(after),
                               err);
    default:
        return 0;
    }
}
