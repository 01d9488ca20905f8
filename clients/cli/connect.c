/* connect.c: the CLI's connections. Everything that reaches the data plane goes through
 * cli_server(). */
#include "clients/cli/cli.h"
#include "clients/cli/printable.h"
#include "proto/rpc/rpc_client.h"
#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/v1/inference.pb-c.h"

enum { CALL_TIMEOUT_MS = 120000 };

int cli_manager(struct cli *cli, struct rpc_client **out_client, struct error *err)
{
    int rc = cli->manager || cli->settings.manager[0] ? 0 : cli_need_state(cli, err);
    if (!rc && !cli->manager)
        rc = cli_dial_open(cli->manager_target, NULL, &cli->manager, err);
    if (!rc)
        *out_client = cli->manager;
    return rc;
}

int cli_server(struct cli *cli, struct rpc_client **out_client, struct error *err)
{
    bool dials = (cli->command->groups & CLI_DIAL) != 0; /* else it has no options for it */
    int rc = cli->server ? 0
                         : cli_dial_open(cli->settings.server, dials ? &cli->settings.dial : NULL,
                                         &cli->server, err);
    if (!rc)
        *out_client = cli->server;
    return rc;
}

int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             ProtobufCMessage **out_response, struct error *err)
{
    struct rpc_call_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    struct rpc_client *client;
    int rc = cli_manager(cli, &client, err);
    if (!rc)
        rc = rpc_client_unary(client, &sluice__manager__v1__model_manager__descriptor, method,
                              request, &options, out_response, err);
    if (!rc && !cli->settings.json)
        printable_message(*out_response);
    return rc;
}

int cli_call_server(struct cli *cli, const char *method, const ProtobufCMessage *request,
                    ProtobufCMessage **out_response, struct error *err)
{
    struct rpc_call_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    struct rpc_client *client;
    int rc = cli_server(cli, &client, err);
    if (!rc)
        rc = rpc_client_unary(client, &sluice__v1__inference__descriptor, method, request, &options,
                              out_response, err);
    if (!rc && !cli->settings.json)
        printable_message(*out_response);
    return rc;
}
