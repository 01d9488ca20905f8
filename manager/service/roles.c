#include "manager/service/roles.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"

#define MODEL_MANAGER "/sluice.manager.v1.ModelManager/"
#define ROUTING       "/sluice.manager.v1.Routing/"

enum { PATH_BYTES = 256 };

/* A viewer sees; an operator moves what an admin has put there. Who registers names files that are
 * then read, who makes keys lets others in, who makes groups hands out devices, and who watches
 * routes is shown to callers as a server: that is an admin's. */
static const struct {
    const char *path;
    enum role needed;
} rows[] = {
    {MODEL_MANAGER "GetModel", ROLE_VIEWER},
    {MODEL_MANAGER "ListModels", ROLE_VIEWER},
    {MODEL_MANAGER "GetTraffic", ROLE_VIEWER},
    {MODEL_MANAGER "ListDevices", ROLE_VIEWER},
    {MODEL_MANAGER "ListDeviceGroups", ROLE_VIEWER},
    {MODEL_MANAGER "ListReplicas", ROLE_VIEWER},
    {MODEL_MANAGER "GetOperation", ROLE_VIEWER},
    {MODEL_MANAGER "ListOperations", ROLE_VIEWER},
    {MODEL_MANAGER "WaitOperation", ROLE_VIEWER},
    {MODEL_MANAGER "WatchOperation", ROLE_VIEWER},
    {MODEL_MANAGER "WatchEvents", ROLE_VIEWER},
    {MODEL_MANAGER "GetStatus", ROLE_VIEWER},
    {MODEL_MANAGER "LoadModelVersion", ROLE_OPERATOR},
    {MODEL_MANAGER "UnloadModelVersion", ROLE_OPERATOR},
    {MODEL_MANAGER "ScaleModelVersion", ROLE_OPERATOR},
    {MODEL_MANAGER "ParkModelVersion", ROLE_OPERATOR},
    {MODEL_MANAGER "WakeModelVersion", ROLE_OPERATOR},
    {MODEL_MANAGER "UpdateModelVersion", ROLE_OPERATOR},
    {MODEL_MANAGER "SetTraffic", ROLE_OPERATOR},
    {MODEL_MANAGER "SetVersionPolicy", ROLE_OPERATOR},
    {MODEL_MANAGER "DrainReplica", ROLE_OPERATOR},
    {MODEL_MANAGER "RestartReplica", ROLE_OPERATOR},
    {MODEL_MANAGER "CancelOperation", ROLE_OPERATOR},
    {MODEL_MANAGER "ReleaseDevice", ROLE_OPERATOR},
    {MODEL_MANAGER "RegisterModelVersion", ROLE_ADMIN},
    {MODEL_MANAGER "DeleteModelVersion", ROLE_ADMIN},
    {MODEL_MANAGER "CreateDeviceGroup", ROLE_ADMIN},
    {MODEL_MANAGER "DeleteDeviceGroup", ROLE_ADMIN},
    {MODEL_MANAGER "CreateApiKey", ROLE_ADMIN},
    {MODEL_MANAGER "ListApiKeys", ROLE_ADMIN},
    {MODEL_MANAGER "RevokeApiKey", ROLE_ADMIN},
    {ROUTING "WatchRoutes", ROLE_ADMIN},
    {ROUTING "WakeVersion", ROLE_ADMIN},
};

enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };

static const char reflection_prefix[] = "/grpc.reflection.";

static enum role find(const char *path)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].path, path) == 0)
            return rows[i].needed;
    return ROLE_NONE;
}

static bool is_served(const char *path, const struct rpc_service *services, size_t n_services)
{
    char served[PATH_BYTES];
    for (size_t i = 0; i < n_services; i++)
        for (size_t k = 0; k < services[i].n_methods; k++) {
            snprintf(served, sizeof(served), "/%s/%s", services[i].descriptor->name,
                     services[i].methods[k].name);
            if (strcmp(served, path) == 0)
                return true;
        }
    return false;
}

int roles_check(const struct rpc_service *services, size_t n_services, struct error *err)
{
    char path[PATH_BYTES];
    for (size_t i = 0; i < n_services; i++)
        for (size_t k = 0; k < services[i].n_methods; k++) {
            snprintf(path, sizeof(path), "/%s/%s", services[i].descriptor->name,
                     services[i].methods[k].name);
            if (find(path) == ROLE_NONE)
                return error_set(err, STATUS_FAILED_PRECONDITION,
                                 "%s has no row in the table of roles", path + 1);
        }
    for (size_t i = 0; i < N_ROWS; i++)
        if (!is_served(rows[i].path, services, n_services))
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "%s has a row in the table of roles and no handler", rows[i].path + 1);
    return 0;
}

enum role roles_needed(const char *path)
{
    if (strncmp(path, reflection_prefix, sizeof(reflection_prefix) - 1) == 0)
        return ROLE_VIEWER;
    return find(path);
}

int roles_allow(const struct rpc_call *call, struct error *err)
{
    const char *path = rpc_call_method(call);
    enum role is = rpc_call_role(call), needed = roles_needed(path);
    if (role_may(is, needed))
        return 0;
    error_set(err, STATUS_PERMISSION_DENIED, "%s needs the role %s; %s has %s", path + 1,
              role_name(needed), rpc_call_tenant(call), role_name(is));
    return error_reason(err, "ROLE_REQUIRED");
}
