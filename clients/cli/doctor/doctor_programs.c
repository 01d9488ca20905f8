/* doctor_programs.c: checks of the running programs and their ports. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/port_owner.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { ANSWER_MS = 2000, ADDRESS_BYTES = 256 };

typedef Sluice__Manager__V1__GetStatusResponse status_response;

static void check_version(struct doctor *doctor, const char *check, const char *program, long pid,
                          const char *version)
{
    bool same = strcmp(version, SLUICE_VERSION) == 0;
    doctor_add(doctor, same ? DOCTOR_OK : DOCTOR_WARN, check,
               same ? NULL : "install all programs of the same version and restart the older ones",
               "%s answers, pid %ld, version %s%s%s", program, pid, version,
               same ? "" : "; this program has version ", same ? "" : SLUICE_VERSION);
}

/* --- servers --- */

static int check_answer(const char *address, struct error *err)
{
    struct rpc_client *client = NULL;
    char target[ADDRESS_BYTES + 8];
    snprintf(target, sizeof(target), "unix:%.250s", address);
    int rc = cli_dial_open("server", target, NULL, &client, err);
    if (!rc)
        rc = rpc_client_wait_connected(client, ANSWER_MS, err);
    rpc_client_destroy(client);
    return rc;
}

static void check_server(struct doctor *doctor, const Sluice__Manager__V1__ServerStatus *server)
{
    struct error err = {0};
    char remedy[DOCTOR_REMEDY_BYTES];
    size_t n_sockets = 0;
    if (doctor->n_servers < CLI_N(doctor->server_pids))
        doctor->server_pids[doctor->n_servers++] = server->pid;
    for (size_t i = 0; i < server->n_addresses; i++) {
        if (server->addresses[i][0] != '/')
            continue;
        n_sockets++;
        if (check_answer(server->addresses[i], &err) != 0) {
            doctor_add(
                doctor, DOCTOR_FAIL, "server",
                doctor_remedy(doctor, remedy,
                              "sluice stop%F; sluice serve%F   # first see the server's log"),
                "sluice-server, pid %ld, does not answer: %s", (long)server->pid, err.message);
            return;
        }
    }
    check_version(doctor, "server", "sluice-server", server->pid, server->software_version);
    for (size_t i = 0; i < server->n_addresses; i++)
        if (server->addresses[i][0] != '/')
            doctor_add(doctor, DOCTOR_OK, "data plane", NULL, "sluice-server listens on %s",
                       server->addresses[i]);
    for (size_t i = 0; i < server->n_http_addresses; i++)
        doctor_add(doctor, DOCTOR_OK, "HTTP", NULL, "sluice-server listens on %s",
                   server->http_addresses[i]);
    doctor->has_http |= server->n_http_addresses > 0;
}

/* --- the manager --- */

static int get_status(struct cli *cli, ProtobufCMessage **out_message, struct error *err)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = ANSWER_MS};
    struct rpc_client *client;
    int rc = cli_manager(cli, &client, err);
    if (!rc)
        rc = rpc_client_unary(client, &sluice__manager__v1__model_manager__descriptor, "GetStatus",
                              &request.base, &options, out_message, err);
    if (!rc && !cli->settings.json)
        printable_message(*out_message);
    return rc;
}

/* Chooses the remedy by the state directory. A killed manager leaves a socket without a listener.
 */
static const char *manager_remedy(const struct doctor *doctor, const struct error *err,
                                  char out[DOCTOR_REMEDY_BYTES])
{
    const char *target = doctor->cli->manager_target;
    const char *path = strncmp(target, "unix:", 5) == 0 ? target + 5 : "";
    if (err->status == STATUS_PERMISSION_DENIED || err->status == STATUS_UNAUTHENTICATED)
        return "run this command as the manager's user, or give this user a role there "
               "(sluice-manager --manage-keys-file)";
    if (err->status == STATUS_DEADLINE_EXCEEDED)
        return doctor_remedy(doctor, out,
                             "sluice stop%F; sluice serve%F   # the manager runs but does not "
                             "answer: first see its log");
    if (path[0] && access(path, F_OK) != 0)
        return doctor_remedy(doctor, out,
                             "sluice serve%F   # with the package: systemctl start sluice-manager");
    return doctor_remedy(doctor, out, "sluice serve%F   # if no manager runs; else see its log");
}

static void check_store(struct doctor *doctor, const status_response *status)
{
    char remedy[DOCTOR_REMEDY_BYTES];
    if (status->store_reason[0])
        doctor_add(doctor, DOCTOR_FAIL, "store",
                   doctor_remedy(doctor, remedy,
                                 "df -h %s   # free space there or repair the disk: until then "
                                 "changes are refused, and serving continues",
                                 doctor->cli->state_dir),
                   "the manager refuses changes: %s", status->store_reason);
    else
        doctor_add(doctor, DOCTOR_OK, "store", NULL, "schema %u, accepts changes",
                   status->store_schema_version);
}

static const char *server_remedy(const struct doctor *doctor, char out[DOCTOR_REMEDY_BYTES])
{
    const char *target = doctor->cli->manager_target;
    char routes[1100];
    if (strncmp(target, "unix:", 5) != 0)
        return "start a server there with systemctl start sluice-server or `sluice serve`";
    snprintf(routes, sizeof(routes), "%s/routes.pb", doctor->cli->state_dir);
    return doctor_remedy(
        doctor, out,
        "sluice-server --manager %s --routes-file %s   # with the package: systemctl start "
        "sluice-server; a running server may have another --manager",
        target + 5, routes);
}

void doctor_check_programs(struct doctor *doctor)
{
    ProtobufCMessage *message;
    struct error err;
    char remedy[DOCTOR_REMEDY_BYTES];
    if (get_status(doctor->cli, &message, &err) != 0) {
        cli_explain_connection(doctor->cli, &err);
        doctor_add(doctor, DOCTOR_FAIL, "manager", manager_remedy(doctor, &err, remedy), "%s",
                   err.message);
        return;
    }
    const status_response *status = (const status_response *)message;
    doctor->manager_pid = status->pid;
    check_version(doctor, "manager", "sluice-manager", status->pid, status->software_version);
    check_store(doctor, status);
    if (!status->n_servers)
        doctor_add(doctor, DOCTOR_FAIL, "server", server_remedy(doctor, remedy),
                   "no server is connected to the manager, so no requests are served");
    for (size_t i = 0; i < status->n_servers; i++)
        check_server(doctor, status->servers[i]);
    if (status->n_replicas > status->n_ready_replicas)
        doctor_add(
            doctor, DOCTOR_WARN, "replicas",
            doctor_remedy(doctor, remedy,
                          "sluice ps%F; sluice events --type replica.%F   # show the reasons"),
            "%u of %u are ready", status->n_ready_replicas, status->n_replicas);
    else
        doctor_add(doctor, DOCTOR_OK, "replicas", NULL, "%u of %u are ready",
                   status->n_ready_replicas, status->n_replicas);
    rpc_message_free(message);
}

/* --- ports --- */

struct port {
    const char *name, *flag, *address, *program;
};

static bool is_ours(const struct doctor *doctor, long pid)
{
    bool ours = pid && (pid == doctor->manager_pid || pid == doctor->lock_pids[0] ||
                        pid == doctor->lock_pids[1]);
    for (size_t i = 0; i < doctor->n_servers && !ours; i++)
        ours = pid == doctor->server_pids[i];
    return ours;
}

static void add_port_in_use(struct doctor *doctor, const struct port *port, unsigned number)
{
    char owner[PORT_OWNER_NAME] = "", remedy[256];
    long pid = port_owner(number, owner);
    if (is_ours(doctor, pid)) {
        bool of_manager = strcmp(owner, "sluice-manager") == 0;
        doctor_add(doctor, DOCTOR_OK, port->name, NULL, "%s is in use by this %s (%s, pid %ld)",
                   port->address, of_manager ? "manager" : "server", owner, pid);
        return;
    }
    if (pid)
        snprintf(remedy, sizeof(remedy),
                 "ps -p %ld -f   # shows the process; stop it, or give %s another port (%s)", pid,
                 port->program, port->flag);
    else
        snprintf(remedy, sizeof(remedy),
                 "sudo ss -ltnp 'sport = :%u'   # shows the process; stop it, or give %s another "
                 "port (%s)",
                 number, port->program, port->flag);
    /* A running program may use another address. */
    bool runs = doctor->manager_pid && !cli_given(doctor->cli, port->flag + 2);
    enum doctor_level level = runs ? DOCTOR_WARN : DOCTOR_FAIL;
    if (pid)
        doctor_add(doctor, level, port->name, remedy, "%s is in use by %s, pid %ld", port->address,
                   owner, pid);
    else
        doctor_add(doctor, level, port->name, remedy,
                   "%s is in use by a process that this user may not inspect", port->address);
}

static void check_port(struct doctor *doctor, const struct port *port)
{
    unsigned number;
    int err_no;
    if (!port->address[0] || strncmp(port->address, "unix:", 5) == 0)
        return;
    if (!port_owner_probe(port->address, &number, &err_no)) {
        doctor_add(doctor, DOCTOR_FAIL, port->name,
                   "write the address like 127.0.0.1:8001 or [::1]:8001",
                   "%s: \"%s\" is no address with a port", port->flag, port->address);
        return;
    }
    if (!err_no)
        doctor_add(doctor, DOCTOR_OK, port->name, NULL, "%s is free", port->address);
    else if (err_no == EADDRINUSE)
        add_port_in_use(doctor, port, number);
    else
        doctor_add(doctor, DOCTOR_FAIL, port->name,
                   "give an address of this machine and a port that this user may use", "%s: %s",
                   port->address, strerror(err_no));
}

void doctor_check_ports(struct doctor *doctor)
{
    const struct cli_settings *s = &doctor->cli->settings;
    const struct port ports[] = {
        {"data plane", "--listen", s->listen, "sluice-server"},
        {"HTTP", "--http-listen", s->http_listen, "sluice-server"},
        {"server metrics", "--metrics", s->metrics, "sluice-server"},
        {"manager metrics", "--manager-metrics", s->manager_metrics, "sluice-manager"},
    };
    /* The addresses of connected servers are checked already. */
    const bool is_checked[CLI_N(ports)] = {doctor->n_servers && !cli_given(doctor->cli, "listen"),
                                           doctor->has_http &&
                                               !cli_given(doctor->cli, "http-listen")};
    for (size_t i = 0; i < CLI_N(ports); i++)
        if (!is_checked[i])
            check_port(doctor, &ports[i]);
}
