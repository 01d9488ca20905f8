/* groups.c: CreateDeviceGroup, ListDeviceGroups, DeleteDeviceGroup. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__CreateDeviceGroupRequest create_request;
typedef Sluice__Manager__V1__DeleteDeviceGroupRequest delete_request;

enum { MAX_GROUPS = 256 };

bool service_group_add(pb_group *group, const char *device)
{
    return message_append_text(&group->n_devices, &group->devices, device);
}

bool service_group_has(const pb_group *group, const char *device)
{
    for (size_t i = 0; i < group->n_devices; i++)
        if (strcmp(group->devices[i], device) == 0)
            return true;
    return false;
}

struct create_args {
    struct device_names names;
    char cuda_why[256]; /* why there is no GPU, where there is none */
};

static int check_devices(const struct catalog *catalog, const struct device_names *names,
                         const char *cuda_why, struct error *err)
{
    for (size_t i = 0; i < names->n_names; i++) {
        struct row *row = catalog_get(catalog, TABLE_DEVICE, names->names[i]);
        const pb_device *device = row ? (const pb_device *)row_message(row) : NULL;
        if (!device) {
            bool gpu = device_name_is_gpu(names->names[i]);
            error_set(err, STATUS_NOT_FOUND, "devices: this machine has no %s%s%.200s",
                      names->names[i], gpu && *cuda_why ? ": " : "", gpu ? cuda_why : "");
            return error_reason(err, REASON_DEVICE_NOT_FOUND);
        }
        if (*device->unusable_reason) {
            error_set(err, STATUS_FAILED_PRECONDITION, "devices: %s cannot be used: %.300s",
                      names->names[i], device->unusable_reason);
            return error_reason(err, REASON_DEVICE_UNUSABLE);
        }
    }
    return 0;
}

static int group_exists(const pb_group *old, const struct device_names *names, struct error *err)
{
    char devices[256] = "";
    size_t n = 0;
    bool same = old->n_devices == names->n_names;
    for (size_t i = 0; same && i < names->n_names; i++)
        same = service_group_has(old, names->names[i]);
    if (same) {
        error_set(err, STATUS_ALREADY_EXISTS, "name: device group %s exists", old->name);
        return error_reason(err, REASON_DEVICE_GROUP_EXISTS);
    }
    for (size_t i = 0; i < old->n_devices && n < sizeof(devices) - 1; i++)
        n += (size_t)snprintf(devices + n, sizeof(devices) - n, "%s%s", i ? ", " : "",
                              old->devices[i]);
    error_set(err, STATUS_ALREADY_EXISTS, "name: device group %s exists with other devices: %s",
              old->name, devices);
    return error_reason(err, REASON_DEVICE_GROUP_DIFFERS);
}

static int apply_create(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    const create_request *request = (const create_request *)message;
    const struct create_args *args = arg;
    const struct device_names *names = &args->names;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_group *old = catalog_group(catalog, request->name);
    if (lifecycle_check_generation(request->name, request->has_expected_generation,
                                   request->expected_generation, old ? old->generation : 0,
                                   err) != 0)
        return err->status;
    if (old)
        return group_exists(old, names, err);
    if (check_devices(catalog, names, args->cuda_why, err) != 0)
        return err->status;
    if (catalog_count(catalog, TABLE_DEVICE_GROUP) >= MAX_GROUPS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "%d device groups exist: that is the limit; delete one first", MAX_GROUPS);
    pb_group *group = MESSAGE_NEW(pb_group, sluice__manager__v1__device_group__descriptor);
    bool complete = group && message_set(&group->name, request->name);
    for (size_t i = 0; complete && i < names->n_names; i++)
        complete = service_group_add(group, names->names[i]);
    if (complete) {
        group->generation = 1;
        group->created_unix_ns = txn_now_unix_ns(txn);
        complete = message_set_copy(
            &((Sluice__Manager__V1__CreateDeviceGroupResponse *)response)->group, group);
    }
    if (!complete) {
        if (group)
            message_free(&group->base);
        return error_no_memory(err);
    }
    struct txn_event event = {.type = "device_group.created", .device_group = request->name};
    return txn_put(txn, TABLE_DEVICE_GROUP, &group->base, err) == 0 ? txn_event(txn, &event, err)
                                                                    : err->status;
}

static int check_create(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, void *arg, struct error *err)
{
    const create_request *request = (const create_request *)message;
    struct create_args *args = arg;
    (void)call;
    snprintf(args->cuda_why, sizeof(args->cuda_why), "%s", service->cuda_unusable_reason);
    if (name_check("name", request->name, err) != 0)
        return err->status;
    return name_parse_devices("devices", request->devices, request->n_devices, &args->names, err);
}

const struct service_change service_create_group = {
    .arg_bytes = sizeof(struct create_args),
    .check = check_create,
    .apply = apply_create,
    .free_arg = free,
};

int service_list_groups(struct service *service, const ProtobufCMessage *message,
                        ProtobufCMessage *message_out, struct error *err)
{
    const struct catalog *catalog = service->fleet->context->catalog;
    Sluice__Manager__V1__ListDeviceGroupsResponse *response =
        (Sluice__Manager__V1__ListDeviceGroupsResponse *)message_out;
    (void)message;
    for (size_t i = 0; catalog_group_at(catalog, i); i++) {
        pb_group *group = build_group(catalog, catalog_group_at(catalog, i));
        if (group && message_append(&response->n_groups, &response->groups, group))
            continue;
        if (group)
            message_free(&group->base);
        return error_no_memory(err);
    }
    return 0;
}

static int check_unused(const struct catalog *catalog, const char *group, struct error *err)
{
    const char *user = NULL;
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++)
        if (strcmp(catalog_deployment_at(catalog, i)->device_group, group) == 0)
            user = catalog_deployment_at(catalog, i)->model;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++)
        if (strcmp(catalog_replica_at(catalog, i)->device_group, group) == 0 &&
            (int)catalog_replica_at(catalog, i)->state != REPLICA_STOPPED)
            user = catalog_replica_at(catalog, i)->model;
    if (!user)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "name: %s is used by model %s", group, user);
    return error_reason(err, REASON_DEVICE_GROUP_IN_USE);
}

static int apply_delete(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    const delete_request *request = (const delete_request *)message;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_group *group = catalog_group(catalog, request->name);
    (void)arg;
    (void)response;
    if (!group) {
        error_set(err, STATUS_NOT_FOUND, "name: no device group \"%.64s\"", request->name);
        return error_reason(err, REASON_DEVICE_GROUP_NOT_FOUND);
    }
    if (group->built_in) {
        error_set(err, STATUS_FAILED_PRECONDITION, "name: %s is built in", request->name);
        return error_reason(err, REASON_DEVICE_GROUP_BUILT_IN);
    }
    struct txn_event event = {.type = "device_group.deleted", .device_group = request->name};
    if (lifecycle_check_generation(request->name, request->has_expected_generation,
                                   request->expected_generation, group->generation, err) != 0 ||
        check_unused(catalog, request->name, err) != 0 ||
        txn_delete(txn, TABLE_DEVICE_GROUP, request->name, err) != 0 ||
        txn_event(txn, &event, err) != 0)
        return err->status;
    return 0;
}

static int check_delete(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, void *arg, struct error *err)
{
    (void)service;
    (void)call;
    (void)arg;
    return name_check("name", ((const delete_request *)message)->name, err);
}

const struct service_change service_delete_group = {.check = check_delete, .apply = apply_delete};
