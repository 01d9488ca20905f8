/* serve_load.c: the loader thread of `serve`: loads models and announces them. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "clients/cli/serve/announce.h"
#include "clients/cli/serve/follow_replicas.h"
#include "clients/cli/serve/restore_models.h"
#include "clients/cli/serve/serve.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/listen.h"
#include "proto/rpc/server/listeners.h"
#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/v1/inference.pb-c.h"

enum { READY_TRIES_MS = 10000, READY_TRY_MS = 50, READY_CALL_MS = 2000 };
enum { MANAGER_TRIES_MS = 15000, MANAGER_TRY_MS = 200 };

/* Waits until the manager answers, the time is over, or serve ends. */
static int wait_for_manager(struct serve *s, struct error *err)
{
    struct rpc_client *client;
    int64_t until_ns = clock_now_ns() + MANAGER_TRIES_MS * NS_PER_MS;
    int rc = cli_manager(s->cli, &client, err);
    if (rc)
        return rc;
    do
        rc = rpc_client_wait_connected(client, MANAGER_TRY_MS, err);
    while (rc && !s->cli->ending && clock_now_ns() < until_ns);
    return rc;
}

static void pause_ms(int64_t ms)
{
    struct timespec pause = {.tv_nsec = ms * NS_PER_MS};
    nanosleep(&pause, NULL);
}

/* Reads the server's address from its status; needed for a port that the kernel chose. */
static void read_address(struct serve *s, const Sluice__Manager__V1__ServerStatus *server)
{
    const char *listen = s->cli->settings.listen;
    size_t n = strlen(listen);
    if (n < 2 || strcmp(listen + n - 2, ":0") != 0)
        return;
    for (size_t i = 0; i < server->n_addresses; i++)
        if (server->addresses[i][0] != '/') /* a leading '/' marks the unix socket */
            snprintf(s->address, sizeof(s->address), "%s", server->addresses[i]);
    cli_dial_address(s->address, s->dial, sizeof(s->dial));
}

/* True if the current server follows the manager's routes. The server has its address by then. */
static bool server_is_up(struct serve *s, struct rpc_client *client)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = READY_CALL_MS};
    ProtobufCMessage *message = NULL;
    struct error err;
    bool up = false;
    if (rpc_client_unary(client, &sluice__manager__v1__model_manager__descriptor, "GetStatus",
                         &request.base, &options, &message, &err) != 0)
        return false;
    const Sluice__Manager__V1__GetStatusResponse *known =
        (const Sluice__Manager__V1__GetStatusResponse *)message;
    for (size_t i = 0; i < known->n_servers && !up; i++) {
        up = known->servers[i]->pid != 0 && (pid_t)known->servers[i]->pid == s->server_pid;
        if (up)
            read_address(s, known->servers[i]);
    }
    rpc_message_free(message);
    return up;
}

static int wait_for_server(struct serve *s, struct error *err)
{
    const struct cli_settings *set = &s->cli->settings;
    struct rpc_client *client;
    int64_t until_ns = clock_now_ns() + MANAGER_TRIES_MS * NS_PER_MS;
    int rc = cli_manager(s->cli, &client, err);
    while (!rc && !server_is_up(s, client)) {
        if (s->cli->ending || clock_now_ns() >= until_ns)
            return error_set(err, STATUS_UNAVAILABLE, "the server did not start; see its log: %s",
                             s->server_log);
        pause_ms(READY_TRY_MS);
    }
    const char *address = s->address[0] ? s->address : set->listen;
    const char *target = address[0] ? address : s->inner_target;
    char url[RPC_ADDRESS_BYTES + 16];
    serve_http_url(set, url, sizeof(url));
    if (!rc)
        announce(s->cli, "serving",
                 json_pack("{s:s,s:s,s:s}", "address", target, "http", url, "state_dir",
                           s->cli->state_dir),
                 "sluice %s: serving gRPC on %s%s%s, state in %s, logs in %s/log", SLUICE_VERSION,
                 target, url[0] ? " and " : "", url, s->cli->state_dir, s->cli->state_dir);
    if (!rc && set->listen[0] && !set->tls_cert[0] && !set->keys_file[0] &&
        !rpc_listen_is_loopback(set->listen))
        announce(s->cli, "open_to_network", json_pack("{s:s}", "address", address),
                 "warning: neither TLS nor API keys are set: everybody who can reach %s can use "
                 "the models; see --tls-cert and --keys-file",
                 address);
    return rc;
}

/* True if the data plane has a replica of the model that takes requests. *out_chats: the model has
 * a chat template. */
static bool is_served(struct rpc_client *client, const char *name, bool *out_chats)
{
    Sluice__V1__GetModelRequest request = SLUICE__V1__GET_MODEL_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = READY_CALL_MS};
    ProtobufCMessage *message = NULL;
    struct error err;
    uint64_t n_ready = 0;
    request.model = (char *)(uintptr_t)name;
    if (rpc_client_unary(client, &sluice__v1__inference__descriptor, "GetModel", &request.base,
                         &options, &message, &err) != 0)
        return false;
    const Sluice__V1__ServedModel *served = ((const Sluice__V1__GetModelResponse *)message)->model;
    for (size_t i = 0; served && i < served->n_versions; i++) {
        const Sluice__V1__ModelInfo *info = served->versions[i]->info;
        n_ready += served->versions[i]->n_ready_replicas;
        *out_chats = info && info->capabilities && info->capabilities->chat;
    }
    rpc_message_free(message);
    return n_ready > 0;
}

/* Announces "ready" only once the server serves the model, so that the printed command works at
 * once. */
static int announce_ready(struct serve *s, const char *name, struct error *err)
{
    const struct cli_settings *set = &s->cli->settings;
    bool cert = set->tls_client_ca[0] && strcmp(set->tls_client_auth, "optional") != 0;
    char flags[CLI_HINT_BYTES], curl[SERVE_HTTP_CURL_BYTES];
    bool chats = false;
    struct rpc_client *client;
    int64_t until_ns = clock_now_ns() + READY_TRIES_MS * NS_PER_MS;
    int rc = cli_server(s->cli, &client, err);
    while (!rc && !is_served(client, name, &chats)) {
        if (s->cli->ending || clock_now_ns() >= until_ns) {
            announce(s->cli, "not_served", json_pack("{s:s}", "model", name),
                     "%s is loaded, but %s does not serve it yet", name,
                     s->address[0] ? s->address : s->cli->settings.listen);
            return 0;
        }
        pause_ms(READY_TRY_MS);
    }
    char command[CLI_HINT_BYTES + 200];
    snprintf(command, sizeof(command), "sluice run %s%s%s%s%s", name,
             cli_hint_flags(s->cli, CLI_HINT_SERVER, flags),
             set->tls_cert[0] ? " --tls-ca FILE" : "",
             cert ? " --tls-client-cert FILE --tls-client-key FILE" : "",
             set->keys_file[0] && !cert ? " --api-key-file FILE" : "");
    serve_http_curl(set, name, chats, curl);
    if (!rc)
        announce(s->cli, "ready",
                 json_pack("{s:s,s:s,s:s}", "model", name, "command", command, "curl", curl),
                 "ready: %s \"Why is the sky blue?\"%s%s", command, curl[0] ? "\n       " : "",
                 curl);
    return rc;
}

/* Loads the model with the command line's options. Follows an open load of an earlier run. Loads a
 * version again if its options differ. The unload then names the version, because an unload without
 * a version takes all versions. */
static int load_as_asked(struct serve *s, const char *name, const char *version, struct error *err)
{
    int rc = 0;
    for (int i = 0; i < 3; i++) {
        ProtobufCMessage *message = NULL;
        rc = action_load(s->cli, name, version, &message, err);
        rpc_message_free(message);
        message = NULL;
        if (rc && err->reason == REASON_OPERATION_IN_PROGRESS) {
            announce(s->cli, "waiting", json_pack("{s:s}", "model", name),
                     "waiting for another load or unload of %s", name);
            rc = action_settle(s->cli, name, err);
        } else if (rc && version[0] && err->reason == REASON_ALREADY_LOADED) {
            announce(s->cli, "reloading", json_pack("{s:s,s:s}", "model", name, "version", version),
                     "reloading %s version %s, because its options differ", name, version);
            rc = action_unload(s->cli, name, version, &message, err);
            rpc_message_free(message);
        } else {
            return rc;
        }
        if (rc)
            return rc;
    }
    return error_set(err, STATUS_ABORTED,
                     "%s: other clients load and unload the model at the same time; try again",
                     name);
}

static int load_one(struct serve *s, const char *path, struct error *err)
{
    char name[64];
    ProtobufCMessage *message = NULL;
    const char *version = s->cli->settings.version;
    if (s->cli->settings.name[0])
        snprintf(name, sizeof(name), "%s", s->cli->settings.name);
    else
        cli_model_name(path, name);
    announce(s->cli, "registering", json_pack("{s:s,s:s}", "model", name, "path", path),
             "registering %s as %s", path, name);
    int rc = action_register(s->cli, name, path, &message, err);
    const Sluice__Manager__V1__RegisterModelVersionResponse *registered =
        (const Sluice__Manager__V1__RegisterModelVersionResponse *)message;
    if (!rc && registered->version) /* else the command line names it */
        version = registered->version->version;
    if (!rc || rc == STATUS_ALREADY_EXISTS) {
        announce(s->cli, "loading", json_pack("{s:s}", "model", name), "loading %s", name);
        rc = load_as_asked(s, name, version, err);
    }
    rpc_message_free(message);
    return rc ? rc : announce_ready(s, name, err);
}

/* Follows the models of the last run, if the command line names no files. The manager restores them
 * by itself, so errors here are not fatal. */
static void follow_restored(struct serve *s)
{
    struct restore_models back;
    struct error err;
    int rc = restore_models_list(s->cli, s->started_unix_ns, &back, &err);
    for (size_t i = 0; !rc && i < back.n_models && !s->cli->ending; i++) {
        bool ready;
        rc = restore_models_wait(s->cli, &back, i, &ready, &err);
        if (!rc && ready)
            rc = announce_ready(s, back.names[i], &err);
    }
    if (rc && !s->cli->ending)
        announce(s->cli, "restore_unknown", json_pack("{s:s}", "message", err.message),
                 "cannot follow the restored models: %s", err.message);
}

void *serve_load(void *arg)
{
    struct serve *s = arg;
    struct error err;
    uint64_t one = 1;
    int rc = wait_for_manager(s, &err);
    s->answered[0] = rc == 0;
    if (!rc)
        rc = wait_for_server(s, &err);
    s->answered[1] = rc == 0;
    for (size_t i = 0; !rc && cli_word(s->cli, i); i++)
        rc = load_one(s, cli_word(s->cli, i), &err);
    if (!rc && !cli_word(s->cli, 0))
        follow_restored(s);
    if (rc && !s->cli->ending)
        cli_fail(s->cli, &err);
    s->load_status = rc ? 1 : 0;
    ssize_t n = write(s->loaded, &one, sizeof(one));
    (void)n; /* an eventfd with nothing to read accepts a write */
    if (!rc)
        follow_replicas(s->cli);
    return NULL;
}
