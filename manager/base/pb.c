#include "manager/base/pb.h"

#include <string.h>

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

bool pb_operation_is_open(const pb_operation *operation)
{
    return (int)operation->state == OPERATION_PENDING || (int)operation->state == OPERATION_RUNNING;
}

bool pb_replica_is_of(const pb_replica *row, const pb_deployment *deployment)
{
    return strcmp(row->model, deployment->model) == 0 &&
           strcmp(row->version, deployment->version) == 0 &&
           strcmp(row->device_group, deployment->device_group) == 0;
}
