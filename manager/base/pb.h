/* pb.h: short names for the generated messages of the manager. Names only. */
#pragma once

#include <stdbool.h>

#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/manager/v1/types.pb-c.h"
#include "sluice/v1/common.pb-c.h"
#include "sluice/worker/v1/report.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"

typedef Sluice__Manager__V1__Model pb_model;
typedef Sluice__Manager__V1__ModelVersion pb_version;
typedef Sluice__Manager__V1__ModelConfig pb_config;
typedef Sluice__Manager__V1__Deployment pb_deployment;
typedef Sluice__Manager__V1__DeviceGroup pb_group;
typedef Sluice__Manager__V1__Replica pb_replica;
typedef Sluice__Manager__V1__ReplicaFootprint pb_footprint;
typedef Sluice__Manager__V1__Traffic pb_traffic;
typedef Sluice__Manager__V1__Operation pb_operation;
typedef Sluice__Manager__V1__UpdateProgress pb_update;
typedef Sluice__Manager__V1__UpdateGates pb_gates;
typedef Sluice__Manager__V1__UpdateFigures pb_figures;
typedef Sluice__Manager__V1__UpdateStepEnd pb_step_end;
typedef Sluice__Manager__V1__OperationRank pb_operation_rank;
typedef Sluice__Manager__V1__OperationResult pb_operation_result;
typedef Sluice__Manager__V1__Event pb_event;
typedef Sluice__Manager__V1__DeviceHold pb_hold;
typedef Sluice__Manager__V1__ApiKey pb_key;
typedef Sluice__Manager__V1__RouteTable pb_route_table;
typedef Sluice__Manager__V1__Route pb_route;
typedef Sluice__Manager__V1__RouteReplica pb_route_replica;
typedef Sluice__V1__Device pb_device;
typedef Sluice__V1__DeviceMemory pb_memory;
typedef Sluice__V1__RankProgress pb_rank;
typedef Sluice__V1__Error pb_error;
typedef Sluice__V1__ModelInfo pb_info;
typedef Sluice__Worker__V1__WorkerStatus pb_status;
typedef Sluice__Worker__V1__Launch pb_launch;
typedef Sluice__Worker__V1__ExitReport pb_exit;
typedef Sluice__Worker__V1__ToolReport pb_tool;

enum replica_state {
    REPLICA_PENDING = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING,
    REPLICA_LOADING = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING,
    REPLICA_WARMING = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_WARMING,
    REPLICA_READY = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY,
    REPLICA_DRAINING = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING,
    REPLICA_STOPPED = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_STOPPED,
    REPLICA_PARKED = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED,
    REPLICA_FAILED = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_FAILED,
};

enum worker_state {
    WORKER_UNKNOWN = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_UNSPECIFIED,
    WORKER_LOADING = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_LOADING,
    WORKER_WARMING = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_WARMING,
    WORKER_READY = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY,
    WORKER_DRAINING = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_DRAINING,
    WORKER_PARKED = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_PARKED,
    WORKER_STOPPED = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_STOPPED,
    WORKER_FAILED = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_FAILED,
};

enum operation_kind {
    OPERATION_LOAD = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_LOAD,
    OPERATION_UNLOAD = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_UNLOAD,
    OPERATION_SCALE = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_SCALE,
    OPERATION_PARK = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_PARK,
    OPERATION_WAKE = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_WAKE,
    OPERATION_DRAIN = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_DRAIN_REPLICA,
    OPERATION_RESTART = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_RESTART_REPLICA,
    OPERATION_UPDATE = SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_UPDATE,
};

enum operation_state {
    OPERATION_PENDING = SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_PENDING,
    OPERATION_RUNNING = SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_RUNNING,
    OPERATION_DONE = SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_DONE,
    OPERATION_FAILED = SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_FAILED,
    OPERATION_CANCELLED = SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_CANCELLED,
};

enum update_phase {
    UPDATE_LOAD = SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_LOAD,
    UPDATE_SHIFT = SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_SHIFT,
    UPDATE_DRAIN = SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_DRAIN,
    UPDATE_ROLL_BACK = SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_ROLL_BACK,
    UPDATE_END = SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_END,
};

enum device_state {
    DEVICE_USABLE = SLUICE__MANAGER__V1__DEVICE_STATE__DEVICE_STATE_USABLE,
    DEVICE_CORDONED = SLUICE__MANAGER__V1__DEVICE_STATE__DEVICE_STATE_CORDONED,
    DEVICE_QUARANTINED = SLUICE__MANAGER__V1__DEVICE_STATE__DEVICE_STATE_QUARANTINED,
};

/* "READY" for a replica_state, "RUNNING" for an operation_state. */
const char *pb_replica_state_name(int state);
const char *pb_operation_state_name(int state);
/* True for PENDING and RUNNING. */
bool pb_operation_is_open(const pb_operation *operation);
/* True where the replica belongs to the deployment: the same version on the same device group. */
bool pb_replica_is_of(const pb_replica *row, const pb_deployment *deployment);
