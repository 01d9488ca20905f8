/* cmd_groups.c: `groups`: named sets of devices to load models on. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

static void print_groups(const Sluice__Manager__V1__ListDeviceGroupsResponse *response)
{
    static const char *const headers[] = {"GROUP", "DEVICES", "REPLICAS", "AGE"};
    struct output_table table;
    struct strbuf devices = {0}, replicas = {0};
    output_table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < response->n_groups; i++) {
        const Sluice__Manager__V1__DeviceGroup *group = response->groups[i];
        char age[32];
        const char *cells[] = {group->name, cli_joined(group->n_devices, group->devices, &devices),
                               cli_joined(group->n_replica_ids, group->replica_ids, &replicas),
                               output_age(group->created_unix_ns, age)};
        output_table_add(&table, cells);
    }
    output_table_print(&table);
    output_table_fini(&table);
    strbuf_fini(&devices);
    strbuf_fini(&replicas);
}

static int run_list(struct cli *cli)
{
    Sluice__Manager__V1__ListDeviceGroupsRequest request =
        SLUICE__MANAGER__V1__LIST_DEVICE_GROUPS_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    if (cli_call(cli, "ListDeviceGroups", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        print_groups((const Sluice__Manager__V1__ListDeviceGroupsResponse *)message);
    rpc_message_free(message);
    return 0;
}

static int run_create(struct cli *cli)
{
    Sluice__Manager__V1__CreateDeviceGroupRequest request =
        SLUICE__MANAGER__V1__CREATE_DEVICE_GROUP_REQUEST__INIT;
    char *devices[64], id[UUID_BYTES];
    struct strbuf text = {0};
    ProtobufCMessage *message;
    struct error err;
    for (size_t i = 1; cli_word(cli, i) && request.n_devices < CLI_N(devices); i++)
        devices[request.n_devices++] = (char *)(uintptr_t)cli_word(cli, i);
    request.name = (char *)(uintptr_t)cli_word(cli, 0);
    request.devices = devices;
    request.request_id = cli_request_id(cli, id);
    if (cli_call(cli, "CreateDeviceGroup", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__DeviceGroup *group =
        ((const Sluice__Manager__V1__CreateDeviceGroupResponse *)message)->group;
    if (cli->settings.json)
        output_json(message);
    else if (group)
        printf("created %s: %s\n", group->name,
               cli_joined(group->n_devices, group->devices, &text));
    strbuf_fini(&text);
    rpc_message_free(message);
    return 0;
}

static int run_delete(struct cli *cli)
{
    Sluice__Manager__V1__DeleteDeviceGroupRequest request =
        SLUICE__MANAGER__V1__DELETE_DEVICE_GROUP_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    char id[UUID_BYTES];
    request.name = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    if (cli_call(cli, "DeleteDeviceGroup", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        printf("deleted %s\n", request.name);
    rpc_message_free(message);
    return 0;
}

static const struct manual_example list_examples[] = {{"sluice groups", NULL}};
static const struct manual_example create_examples[] = {
    {"sluice groups create left cpu:0", NULL}, {"sluice groups create pair cuda:0-1", NULL}};
static const struct manual_example delete_examples[] = {{"sluice groups delete left", NULL}};

const struct cli_command cmd_groups_list = {
    .name = "groups list",
    .arguments = "",
    .summary = "list device groups (also: sluice groups)",
    .examples = list_examples,
    .n_examples = CLI_N(list_examples),
    .groups = CLI_MANAGE,
    .run = run_list,
};
const struct cli_command cmd_groups_create = {
    .name = "groups create",
    .arguments = "NAME DEVICE...",
    .summary = "name a set of devices",
    .description = "Devices are written cpu:0, cpu:0-1 or cuda:0,1, all of one kind; `sluice "
                   "devices` lists them. `sluice load MODEL --group NAME` uses the group.",
    .examples = create_examples,
    .n_examples = CLI_N(create_examples),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_create,
};
const struct cli_command cmd_groups_delete = {
    .name = "groups delete",
    .arguments = "GROUP",
    .summary = "delete a device group that no model is loaded on",
    .examples = delete_examples,
    .n_examples = CLI_N(delete_examples),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_delete,
};
