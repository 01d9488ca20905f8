#include "manager/base/pb.h"

const char *pb_replica_state_name(int state)
{
    static const char *const names[] = {
        [REPLICA_PENDING] = "PENDING",   [REPLICA_LOADING] = "LOADING",
        [REPLICA_WARMING] = "WARMING",   [REPLICA_READY] = "READY",
        [REPLICA_DRAINING] = "DRAINING", [REPLICA_STOPPED] = "STOPPED",
        [REPLICA_PARKED] = "PARKED",     [REPLICA_FAILED] = "FAILED",
    };
    return state > 0 && state <= REPLICA_FAILED ? names[state] : "UNSPECIFIED";
}

const char *pb_operation_state_name(int state)
{
    static const char *const names[] = {
        [OPERATION_PENDING] = "PENDING",     [OPERATION_RUNNING] = "RUNNING",
        [OPERATION_DONE] = "DONE",           [OPERATION_FAILED] = "FAILED",
        [OPERATION_CANCELLED] = "CANCELLED",
    };
    return state > 0 && state <= OPERATION_CANCELLED ? names[state] : "UNSPECIFIED";
}
