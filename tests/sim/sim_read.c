/* sim_read.c: calls of clients and watches of servers that change nothing. A single call here may
 * wake a parked version. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "tests/sim/sim.h"

static const char *const models[] = {"a", "b"}, *const versions[] = {"1", "2"};

void sim_read_operation(bool once)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_OPERATION);
    const char *id =
        // an operation that does not exist
        n ? catalog_operation_at(&sim.manager.catalog, n - 1)->id : "o999999";
    Sluice__Manager__V1__WaitOperationRequest wait =
        SLUICE__MANAGER__V1__WAIT_OPERATION_REQUEST__INIT;
    Sluice__Manager__V1__WatchOperationRequest watch =
        SLUICE__MANAGER__V1__WATCH_OPERATION_REQUEST__INIT;
    char text[SIM_ID_BYTES];
    snprintf(text, sizeof(text), "%s", id);
    wait.id = watch.id = text;
    wait.timeout_ms = sim_chance(50) ? 500 : 0;
    if (once)
        sim_call_begin(sim_call_new(KIND_READ, NULL, &wait.base), "WaitOperation");
    else
        sim_call_begin(sim_call_new(KIND_READ, NULL, &watch.base), "WatchOperation");
}

void sim_read_events(void)
{
    Sluice__Manager__V1__WatchEventsRequest request =
        SLUICE__MANAGER__V1__WATCH_EVENTS_REQUEST__INIT;
    uint64_t last = sim.manager.catalog.last_event_seq;
    const uint64_t from[] = {0, 1, last > 40 ? last - 40 : 1, last > 200 ? last - 140 : 1,
                             last + 9};
    request.from_seq = from[sim_below(sizeof(from) / sizeof(from[0]))];
    sim_call_begin(sim_call_new(KIND_EVENTS, NULL, &request.base), "WatchEvents");
}

static void tell_odd(Sluice__Manager__V1__WatchRoutesRequest *request)
{
    static char name[200], address[] = "127.0.0.1:1", *addresses[40];
    memset(name, 'x', sizeof(name) - 1);
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++)
        addresses[i] = address;
    if (sim_chance(50)) {
        request->server_id = name;
    } else {
        request->addresses = addresses;
        request->n_addresses = sizeof(addresses) / sizeof(addresses[0]);
    }
}

void sim_client_watch_routes(bool odd)
{
    Sluice__Manager__V1__WatchRoutesRequest request =
        SLUICE__MANAGER__V1__WATCH_ROUTES_REQUEST__INIT;
    static char server[] = "s", address[] = "127.0.0.1:1", *addresses[] = {address};
    request.server_id = server;
    request.addresses = addresses;
    request.n_addresses = 1;
    if (odd)
        tell_odd(&request);
    sim_call_begin(sim_call_new(KIND_ROUTES, NULL, &request.base), "WatchRoutes");
}

static void set_if_there(ProtobufCMessage *message, const char *name, const char *text)
{
    if (protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name))
        sim_set_text(message, name, text);
}

static void set_page_size(ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, "page_size");
    uint32_t size = 1 + (uint32_t)sim_below(3);
    if (field && sim_chance(50))
        memcpy((char *)message + field->offset, &size, sizeof(size));
}

bool sim_set_sleeper(ProtobufCMessage *message)
{
    const struct catalog *catalog = &sim.manager.catalog;
    bool found = false;
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        if (!catalog_deployment_at(catalog, i)->parked)
            continue;
        found = true;
        if (message) {
            sim_set_text(message, "model", catalog_deployment_at(catalog, i)->model);
            sim_set_text(message, "version", catalog_deployment_at(catalog, i)->version);
        }
    }
    return found;
}

void sim_read(void)
{
    static const struct {
        const ProtobufCMessageDescriptor *descriptor;
        const char *method;
    } reads[] = {
        {&sluice__manager__v1__list_replicas_request__descriptor, "ListReplicas"},
        {&sluice__manager__v1__get_status_request__descriptor, "GetStatus"},
        {&sluice__manager__v1__get_model_request__descriptor, "GetModel"},
        {&sluice__manager__v1__list_models_request__descriptor, "ListModels"},
        {&sluice__manager__v1__get_traffic_request__descriptor, "GetTraffic"},
        {&sluice__manager__v1__get_operation_request__descriptor, "GetOperation"},
        {&sluice__manager__v1__list_operations_request__descriptor, "ListOperations"},
        {&sluice__manager__v1__list_device_groups_request__descriptor, "ListDeviceGroups"},
        {&sluice__manager__v1__list_devices_request__descriptor, "ListDevices"},
        {&sluice__manager__v1__list_api_keys_request__descriptor, "ListApiKeys"},
        {&sluice__manager__v1__inspect_model_version_request__descriptor, "InspectModelVersion"},
        {&sluice__manager__v1__inspect_model_version_request__descriptor, "InspectModelVersion"},
        {&sluice__manager__v1__wake_version_request__descriptor, "WakeVersion"},
        {&sluice__manager__v1__wake_version_request__descriptor, "WakeVersion"},
    };
    if (sim_chance(6)) {
        sim_client_watch_routes(true);
        return;
    }
    size_t i = sim_below(sizeof(reads) / sizeof(reads[0]));
    ProtobufCMessage *message = message_new(reads[i].descriptor);
    if (!message)
        abort();
    if (sim_chance(50))
        set_if_there(message, "model", models[sim_below(2)]);
    set_if_there(message, "id", "o1");
    set_if_there(message, "version", versions[sim_below(2)]);
    set_if_there(message, "server_id", "s");
    if (message->descriptor == &sluice__manager__v1__wake_version_request__descriptor)
        (void)sim_set_sleeper(message);
    set_page_size(message);
    if (message->descriptor->n_fields && sim_chance(40))
        sim_odd(message);
    struct rpc_call *call = sim_call_new(KIND_READ, NULL, message);
    message_free(message);
    sim_call_begin(call, reads[i].method);
}
