/* connect.c: connections of the CLI. All calls to the data plane go through cli_server(). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/v1/inference.pb-c.h"

enum { CALL_TIMEOUT_MS = 120000, SERVER_WAIT_MS = 3000, SERVER_POLL_MS = 50 };

/* Connects to the manager. On the unix socket the kernel reports the caller's uid, so no key is
 * sent. */
static int dial_manager(struct cli *cli, struct error *err)
{
    const char *target = cli->manager_target;
    const struct cli_dial *dial = &cli->settings.dial;
    if (!cli_dial_is_port(target))
        return cli_dial_open("manager", target, NULL, &cli->manager, err);
    if ((cli->command->groups & (CLI_DIAL | CLI_MANAGE)) == 0) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "--manager %s: this command works only through the manager's unix socket; give "
                  "its path",
                  target);
        return cli_usage(err);
    }
    if (!dial->tls && !dial->tls_ca[0]) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "--manager %s: a manager's port speaks TLS; give --tls-ca FILE or --tls", target);
        return cli_usage(err);
    }
    return cli_dial_open("manager", target, dial, &cli->manager, err);
}

int cli_manager(struct cli *cli, struct rpc_client **out_client, struct error *err)
{
    int rc = cli->manager || cli->settings.manager[0] ? 0 : cli_need_state(cli, err);
    if (!rc && !cli->manager)
        rc = dial_manager(cli, err);
    if (!rc)
        *out_client = cli->manager;
    return rc;
}

/* True if a process listens on the unix socket. */
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

bool cli_manager_listens(const struct cli *cli)
{
    static const char scheme[] = "unix:";
    return strncmp(cli->manager_target, scheme, sizeof(scheme) - 1) == 0 &&
           listens(cli->manager_target + sizeof(scheme) - 1);
}

/* Copies a listen address; a wildcard host becomes the loopback address. */
static void copy_address(const char *address, char *out, size_t n)
{
    static const char *const hosts[][2] = {{"0.0.0.0:", "127.0.0.1:"}, {"[::]:", "[::1]:"}};
    for (size_t i = 0; i < CLI_N(hosts); i++)
        if (strncmp(address, hosts[i][0], strlen(hosts[i][0])) == 0) {
            snprintf(out, n, "%s%s", hosts[i][1], address + strlen(hosts[i][0]));
            return;
        }
    snprintf(out, n, "%s", address);
}

/* Asks the manager for the port of the state directory's server. */
static int ask_for_port(struct cli *cli, struct error *err)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message;
    cli->server_target[0] = '\0';
    if (cli_call(cli, "GetStatus", &request.base, &message, err) == 0) {
        const Sluice__Manager__V1__GetStatusResponse *s = (const void *)message;
        for (size_t i = 0; i < s->n_servers && !cli->server_target[0]; i++)
            for (size_t a = 0; a < s->servers[i]->n_addresses && !cli->server_target[0]; a++)
                if (s->servers[i]->addresses[a][0] != '/') /* a leading '/' marks the unix socket */
                    copy_address(s->servers[i]->addresses[a], cli->server_target,
                                 sizeof(cli->server_target));
        rpc_message_free(message);
    }
    return cli->server_target[0]
               ? 0
               : error_set(err, STATUS_UNAVAILABLE,
                           "--server: the manager does not report the port of the server of %s, "
                           "and keys and certificates go to a port only; give --server ADDR:PORT",
                           cli->state_dir);
}

bool cli_is_served(const char *state_dir)
{
    char path[1100];
    snprintf(path, sizeof(path), "%s/serve.lock", state_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
    if (fd >= 0)
        close(fd);
    return held;
}

/* Waits up to a second for the socket: a lost server is back by then. A server that starts or
 * drains is away for longer. Another server is never used instead, because the prompt must not
 * reach a stranger. */
static int await_server(const struct cli *cli, const char *socket, bool *out_listens,
                        struct error *err)
{
    *out_listens = listens(socket);
    for (int ms = 0; !*out_listens && cli_is_served(cli->state_dir); ms += SERVER_POLL_MS) {
        if (ms >= SERVER_WAIT_MS) {
            error_set(
                err, STATUS_UNAVAILABLE,
                "the server of %s takes no requests now: it starts, drains or stops; try again",
                cli->state_dir);
            return error_reason(err, REASON_NOT_SERVING);
        }
        poll(NULL, 0, SERVER_POLL_MS);
        *out_listens = listens(socket);
    }
    return 0;
}

/* Finds the server: --server if given; else the server of the state directory; else the default
 * address. Certificates and keys are sent to a port only; without them the unix socket of the
 * server is used. */
static int find_server(struct cli *cli, struct error *err)
{
    static const char scheme[] = "unix:";
    const struct cli_dial *dial = &cli->settings.dial;
    bool dials = (cli->command->groups & CLI_DIAL) != 0; /* has TLS and key options */
    bool shows = dials && (dial->tls || dial->tls_ca[0] || dial->tls_client_cert[0] ||
                           dial->api_key[0] || dial->api_key_file[0]);
    char *target = cli->server_target;
    if (!cli_given(cli, "server") && cli->state_dir[0]) {
        snprintf(target, sizeof(cli->server_target), "%s%s/run/server.sock", scheme,
                 cli->state_dir);
        bool found;
        int rc = await_server(cli, target + strlen(scheme), &found, err);
        if (rc || found)
            return rc || !shows ? rc : ask_for_port(cli, err);
        cli->fell_back = true;
    }
    snprintf(target, sizeof(cli->server_target), "%s", cli->settings.server);
    return 0;
}

int cli_server_target(struct cli *cli, const char **out_target, struct error *err)
{
    int rc = cli->server_target[0] ? 0 : find_server(cli, err);
    *out_target = cli->server_target;
    return rc;
}

int cli_server_connect(struct cli *cli, struct rpc_client **out_client, struct error *err)
{
    const char *target;
    bool dials = (cli->command->groups & CLI_DIAL) != 0;
    int rc = cli_server_target(cli, &target, err);
    return rc ? rc
              : cli_dial_open("server", target, dials ? &cli->settings.dial : NULL, out_client,
                              err);
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

/* --- the state directory --- */

int cli_default_state(char *out, size_t n_out)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = xdg && xdg[0] ? snprintf(out, n_out, "%s/sluice", xdg)
                          : snprintf(out, n_out, "%s/.local/state/sluice", home ? home : "");
    return n > 0 && (size_t)n < n_out && ((xdg && xdg[0]) || (home && home[0])) ? 0 : -1;
}

void cli_join_path(const char *dir, const char *name, char *out, size_t n_out)
{
    while (name[0] == '.' && name[1] == '/')
        name += 1 + strspn(name + 1, "/");
    bool same = !name[0] || strcmp(name, ".") == 0;
    int n = snprintf(out, n_out, "%s%s%s", dir, same ? "" : "/", same ? "" : name);
    while (n > 1 && (size_t)n < n_out && out[n - 1] == '/')
        out[--n] = '\0';
}

int cli_make_dir(const char *path, struct error *err)
{
    char part[1100];
    snprintf(part, sizeof(part), "%s", path);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        mkdir(part, 0700);
        *p = '/';
    }
    if (mkdir(part, 0700) != 0 && errno != EEXIST)
        return error_errno(err, errno, "cannot make %s", path);
    return 0;
}

void cli_resolve_paths(struct cli *cli)
{
    const char *given = cli->settings.state_dir;
    char here[sizeof(cli->state_dir)];
    if (given[0] && given[0] != '/' && getcwd(here, sizeof(here)))
        cli_join_path(here, given, cli->state_dir, sizeof(cli->state_dir));
    else if (given[0])
        snprintf(cli->state_dir, sizeof(cli->state_dir), "%s", given);
    else if (cli_default_state(cli->state_dir, sizeof(cli->state_dir)) != 0)
        cli->state_dir[0] = '\0'; /* cli_need_state() reports the error if needed */
    if (cli_dial_is_port(cli->settings.manager))
        snprintf(cli->manager_target, sizeof(cli->manager_target), "%s", cli->settings.manager);
    else if (cli->settings.manager[0])
        snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%s",
                 cli->settings.manager);
    else
        snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%s/run/manager.sock",
                 cli->state_dir);
}
