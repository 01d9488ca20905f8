/* fail_connection.c: explains a failed connection. gRPC core's text names parts of gRPC.
 * The explanation names the address, and the process that has the port. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/port_owner.h"
#include "proto/rpc/client/client.h"

enum { CORE_BYTES = 256 };

/* The peer of the failed connection. */
struct peer {
    const char *name;    /* "manager", "server" */
    const char *address; /* path of a socket, or HOST:PORT */
    bool is_socket;
};

static struct peer find_peer(const struct cli *cli, const struct error *err)
{
    static const char scheme[] = "unix:";
    bool manager = !cli->server_target[0] || strstr(err->message, cli->manager_target);
    const char *target = manager ? cli->manager_target : cli->server_target;
    bool socket = strncmp(target, scheme, sizeof(scheme) - 1) == 0;
    return (struct peer){manager ? "manager" : "server",
                         socket ? target + sizeof(scheme) - 1 : target, socket};
}

/* Returns the pid and name of the process that has the port on this machine. 0: none, or another
 * machine. */
static long find_owner(const struct peer *peer, char name[PORT_OWNER_NAME])
{
    const char *colon = strrchr(peer->address, ':');
    bool local = strncmp(peer->address, "127.", 4) == 0 ||
                 strncmp(peer->address, "[::1]", 5) == 0 ||
                 strncmp(peer->address, "localhost:", 10) == 0;
    return !peer->is_socket && local && colon
               ? port_owner((unsigned)strtoul(colon + 1, NULL, 10), name)
               : 0;
}

/* The cause at the end of core's text: "Connection refused". */
static const char *cause_of(const char *core)
{
    const char *cause = core;
    for (const char *next = core; (next = strstr(next, ": ")) != NULL;)
        cause = next += 2;
    return cause;
}

static void explain_not_connected(const struct peer *peer, const char *core, struct error *err)
{
    char owner[PORT_OWNER_NAME] = "";
    long pid = find_owner(peer, owner);
    if (pid && strncmp(owner, "sluice-", 7) != 0)
        error_set(err, STATUS_UNAVAILABLE, "%s is the port of another program, %s, pid %ld",
                  peer->address, owner, pid);
    else if (peer->is_socket)
        error_set(err, STATUS_UNAVAILABLE, "no %s answers on %s", peer->name, peer->address);
    else
        error_set(err, STATUS_UNAVAILABLE, "no %s answers on %s: %s", peer->name, peer->address,
                  cause_of(core));
}

static void explain_other_protocol(const struct peer *peer, struct error *err)
{
    char owner[PORT_OWNER_NAME] = "";
    long pid = find_owner(peer, owner);
    if (pid)
        error_set(err, STATUS_UNAVAILABLE, "%s is the port of another %s, %s, pid %ld",
                  peer->address, strncmp(owner, "sluice-", 7) ? "program" : "service", owner, pid);
    else
        error_set(err, STATUS_UNAVAILABLE, "%s is no gRPC port", peer->address);
}

void cli_explain_connection(const struct cli *cli, struct error *err)
{
    if (err->status != STATUS_UNAVAILABLE || err->reason)
        return;
    const enum reason reason = rpc_client_connection_reason(err);
    const struct peer peer = find_peer(cli, err);
    char core[CORE_BYTES];
    snprintf(core, sizeof(core), "%.*s", CORE_BYTES - 1, err->message);
    switch (reason) {
    case REASON_NOT_CONNECTED:
        explain_not_connected(&peer, core, err);
        break;
    case REASON_HTTP1_PORT:
        explain_other_protocol(&peer, err);
        break;
    case REASON_SOCKET_DENIED:
        error_set(err, STATUS_UNAVAILABLE, "this account may not use the socket %s", peer.address);
        break;
    case REASON_CONNECTION_LOST:
        error_set(err, STATUS_UNAVAILABLE, "the connection to the %s on %s was lost", peer.name,
                  peer.address);
        break;
    case REASON_HANDSHAKE_CLOSED:
        error_set(err, STATUS_UNAVAILABLE, "the %s on %s closed the new connection", peer.name,
                  peer.address);
        break;
    case REASON_PEER_WITHOUT_TLS:
    case REASON_CERTIFICATE_UNTRUSTED:
    case REASON_CERTIFICATE_OTHER_NAME:
        error_set(err, STATUS_UNAVAILABLE, "no TLS connection to the %s on %s: %s", peer.name,
                  peer.address, core);
        break;
    default:
        return;
    }
    error_reason(err, reason);
}
