/* connect.c: the CLI's connections. Everything that reaches the data plane goes through
 * cli_server(). */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

/* Whether somebody listens on a unix socket. */
static bool listens(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool connected =
        fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return connected;
}

/* --server where it is given. Else the server of the state directory, on its own socket whatever
 * address it has, unless a certificate or key is to be shown; and the default address where none
 * runs there. */
const char *cli_server_target(const struct cli *cli, char *room, size_t n_room)
{
    static const char scheme[] = "unix:";
    const struct cli_dial *dial = &cli->settings.dial;
    bool dials = (cli->command->groups & CLI_DIAL) != 0; /* else it has no options for it */
    if (cli_given(cli, "server") || !cli->state_dir[0] ||
        (dials && (dial->tls || dial->tls_ca[0] || dial->tls_client_cert[0] || dial->api_key[0] ||
                   dial->api_key_file[0])))
        return cli->settings.server;
    snprintf(room, n_room, "%s%s/run/server.sock", scheme, cli->state_dir);
    return listens(room + strlen(scheme)) ? room : cli->settings.server;
}

int cli_server_connect(struct cli *cli, struct rpc_client **out_client, struct error *err)
{
    char room[1200];
    bool dials = (cli->command->groups & CLI_DIAL) != 0; /* else it has no options for it */
    return cli_dial_open(cli_server_target(cli, room, sizeof(room)),
                         dials ? &cli->settings.dial : NULL, out_client, err);
}

int cli_server(struct cli *cli, struct rpc_client **out_client, struct error *err)
{
    int rc = cli->server ? 0 : cli_server_connect(cli, &cli->server, err);
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
