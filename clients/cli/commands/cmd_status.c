/* cmd_status.c: `status` and `version`. */
#include <inttypes.h>
#include <stdio.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

/* Prints the server's listen addresses, and those of HTTP. The unix socket of gRPC is printed only
 * if the server has no port. */
static void print_server(const Sluice__Manager__V1__ServerStatus *server)
{
    char age[32];
    const char *lead = " listens on ";
    printf("server      pid %" PRIu32, server->pid);
    for (size_t i = 0; i < server->n_addresses; i++)
        if (server->addresses[i][0] != '/' || server->n_addresses == 1) {
            printf("%s%s", lead, server->addresses[i]);
            lead = ", ";
        }
    for (size_t i = 0; i < server->n_http_addresses; i++)
        printf("%s%s", i ? ", " : ", HTTP on ", server->http_addresses[i]);
    printf(", routes generation %" PRIu64 ", connected %s\n", server->routes_generation,
           output_age(server->connected_unix_ns, age));
}

static void print_status(const Sluice__Manager__V1__GetStatusResponse *s)
{
    char age[32], store[32], memory[32];
    printf("manager     version %s, pid %" PRIu32 ", up %s, resident %s\n", s->software_version,
           s->pid, output_age(s->started_unix_ns, age), format_bytes(s->resident_bytes, memory));
    printf("store       schema %" PRIu32 ", %s, generation %" PRIu64 ", %" PRIu64 " events, %s\n",
           s->store_schema_version, format_bytes(s->store_bytes, store), s->generation,
           s->last_event_seq, s->store_reason[0] ? s->store_reason : "writable");
    printf("models      %" PRIu32 " (%" PRIu32 " versions)\nreplicas    %" PRIu32
           " ready of %" PRIu32 ", %" PRIu32 " adopted\noperations  %" PRIu32 " open\n",
           s->n_models, s->n_model_versions, s->n_ready_replicas, s->n_replicas,
           s->n_adopted_workers, s->n_open_operations);
    for (size_t i = 0; i < s->n_servers; i++)
        print_server(s->servers[i]);
    if (!s->n_servers)
        puts("server      none connected");
}

static int run_status(struct cli *cli)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    if (cli_call(cli, "GetStatus", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        print_status((const Sluice__Manager__V1__GetStatusResponse *)message);
    rpc_message_free(message);
    return 0;
}

static int run_version(struct cli *cli)
{
    if (cli->settings.json)
        printf("{\"version\":\"%s\"}\n", SLUICE_VERSION);
    else
        puts("sluice " SLUICE_VERSION);
    return 0;
}

static const struct manual_example status_examples[] = {{"sluice status", NULL}};
static const struct manual_example version_examples[] = {{"sluice version --json", NULL}};

const struct cli_command cmd_status = {
    .name = "status",
    .arguments = "",
    .summary = "show the manager, its store and the servers",
    .examples = status_examples,
    .n_examples = CLI_N(status_examples),
    .groups = CLI_MANAGE,
    .run = run_status,
};
const struct cli_command cmd_version = {
    .name = "version",
    .arguments = "",
    .summary = "print the version",
    .examples = version_examples,
    .n_examples = CLI_N(version_examples),
    .run = run_version,
};
