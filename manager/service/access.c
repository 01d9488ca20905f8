#include "manager/service/access.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <grp.h>

#include "base/access/api_keys.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/service/service.h"
#include "manager/settings/settings.h"
#include "manager/store/catalog.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/listeners.h"
#include "proto/rpc/server/server.h"

/* --- roles --- */

enum { GROUP_BYTES = 16 << 10, MAX_LINES_PER_S = 10 };

static const char reflection_prefix[] = "/grpc.reflection.";

enum role access_role_needed(const char *path)
{
    if (strncmp(path, reflection_prefix, sizeof(reflection_prefix) - 1) == 0)
        return ROLE_VIEWER;
    return service_role_needed(path);
}

static int allow_role(const struct rpc_call *call, struct error *err)
{
    const char *path = rpc_call_method(call);
    enum role is = rpc_call_role(call), needed = access_role_needed(path);
    if (role_may(is, needed))
        return 0;
    error_set(err, STATUS_PERMISSION_DENIED, "%s needs the role %s; %s has %s", path + 1,
              role_name(needed), rpc_call_tenant(call), role_name(is));
    return error_reason(err, REASON_ROLE_REQUIRED);
}

/* --- calls --- */

void access_caller_of(const struct rpc_call *call, struct access_caller *out_caller)
{
    struct access_caller caller = {.name = rpc_call_tenant(call), .role = rpc_call_role(call)};
    caller.has_uid = rpc_call_peer_uid(call, &caller.uid);
    *out_caller = caller;
}

/* Limits log lines about denied calls, so that a caller with a role cannot fill the disk. All
 * denied calls are counted. */
static bool may_be_logged(struct access_gate *gate)
{
    int64_t now_s = clock_now_ns() / NS_PER_S;
    if (atomic_exchange(&gate->denials_at_s, now_s) != now_s)
        atomic_store(&gate->n_denials, 0);
    return atomic_fetch_add(&gate->n_denials, 1) < MAX_LINES_PER_S;
}

static int authorize(void *arg, struct rpc_call *call, struct error *err)
{
    struct access_gate *gate = arg;
    int rc = access_authorize(gate->access, call, err);
    if (rc == 0 && !access_is_open(call) && (rc = allow_role(call, err)) != 0)
        access_count(gate->access, ACCESS_ROLE_REQUIRED);
    if (rc == STATUS_PERMISSION_DENIED && may_be_logged(gate))
        log_warn(LOG_EVENT("call denied"), LOG_STR("method", rpc_call_method(call)),
                 LOG_STR("caller", rpc_call_tenant(call)),
                 LOG_STR("role", role_name(rpc_call_role(call))),
                 LOG_STR("reason", error_reason_name(err)));
    return rc;
}

static int add_key(struct api_keys *keys, const pb_key *key, struct error *err)
{
    static const enum role roles[] = {ROLE_NONE, ROLE_VIEWER, ROLE_OPERATOR, ROLE_ADMIN};
    char who[API_KEYS_MAX_WHO + 1];
    if (key->revoked_unix_ns || (unsigned)key->role >= sizeof(roles) / sizeof(roles[0]))
        return 0;
    snprintf(who, sizeof(who), "key:%s", key->name);
    return api_keys_add(keys, who, key->sha256, roles[key->role],
                        key->expires_unix_ns ? key->expires_unix_ns / NS_PER_S : INT64_MAX, err);
}

void access_take_keys(struct access_gate *gate)
{
    const struct catalog_list *list = &gate->context->catalog->lists[TABLE_API_KEY];
    struct api_keys *keys = NULL;
    struct error err;
    if (!gate->access || list->n_changes == gate->n_key_changes)
        return;
    int rc = api_keys_create(&keys, &err);
    for (size_t i = 0; rc == 0 && i < list->n_rows; i++)
        rc = add_key(keys, catalog_key_at(gate->context->catalog, i), &err);
    if (rc != 0) { /* the next change tries again */
        log_error(LOG_EVENT("keys of the state store not loaded"), LOG_STR("why", err.message));
        api_keys_destroy(keys);
        return;
    }
    access_set_stored_keys(gate->access, keys);
    gate->n_key_changes = list->n_changes;
}

/* Fails with INVALID_ARGUMENT for files and settings, where a new try would not help. */
static int open_access(const struct settings *settings, bool has_stored_keys,
                       struct access **out_access, struct error *err)
{
    struct access_config access = settings->access;
    access.management = true;
    access.has_stored_keys = has_stored_keys;
    int rc = access_create(&access, settings->manage_listen, out_access, err);
    if (rc != 0 && rc != STATUS_RESOURCE_EXHAUSTED)
        rc = err->status = STATUS_INVALID_ARGUMENT;
    return rc;
}

static void count_refusal(void *arg, enum rpc_limit limit)
{
    struct access_gate *gate = arg;
    atomic_fetch_add_explicit(&gate->n_refused[limit], 1, memory_order_relaxed);
}

int access_guard(struct access_gate *gate, struct rpc_server_config *config, struct error *err)
{
    if (open_access(gate->context->settings,
                    catalog_count(gate->context->catalog, TABLE_API_KEY) > 0, &gate->access,
                    err) != 0)
        return err->status;
    access_take_keys(gate);
    config->authorize = authorize;
    config->authorize_context = gate;
    config->on_limit = count_refusal;
    config->limit_context = gate;
    config->tls = access_tls(gate->access);
    return 0;
}

/* Finds a group by name or number. */
static int find_group(const char *name, gid_t *out_gid, struct error *err)
{
    struct group entry, *found = NULL;
    char *text = malloc(GROUP_BYTES), *end;
    int err_no = text ? getgrnam_r(name, &entry, text, GROUP_BYTES, &found) : ENOMEM;
    if (found)
        *out_gid = found->gr_gid;
    free(text);
    if (found)
        return 0;
    errno = 0;
    unsigned long number = strtoul(name, &end, 10);
    if (name[0] >= '0' && name[0] <= '9' && !*end && errno == 0 && number < UINT32_MAX) {
        *out_gid = (gid_t)number;
        return 0;
    }
    if (err_no)
        return error_errno(err, err_no, "--manage-group: %.80s", name);
    return error_set(err, STATUS_INVALID_ARGUMENT, "--manage-group: there is no group %.80s", name);
}

/* Lets the group reach the socket in the run directory. The group cannot list the directory.
 * Other folders and sockets there have modes of their own. */
static int open_folder(const struct settings *settings, gid_t gid, struct error *err)
{
    size_t n = strlen(settings->run_dir);
    if (strncmp(settings->socket, settings->run_dir, n) != 0 || settings->socket[n] != '/')
        return 0;
    if (lchown(settings->run_dir, (uid_t)-1, gid) != 0 || chmod(settings->run_dir, 0710) != 0)
        return error_errno(err, errno, "--manage-group: cannot open %s to the group",
                           settings->run_dir);
    return 0;
}

int access_listen(struct access_gate *gate, struct error *err)
{
    const struct settings *settings = gate->context->settings;
    gid_t gid = 0;
    uint16_t port;
    if (!*settings->manage_group) {
        if (rpc_server_listen_unix(gate->server, settings->socket, err) != 0)
            return err->status;
    } else if (find_group(settings->manage_group, &gid, err) != 0 ||
               rpc_server_listen_unix_group(gate->server, settings->socket, gid, err) != 0 ||
               open_folder(settings, gid, err) != 0) {
        if (err->status == STATUS_PERMISSION_DENIED) /* a new try would not help */
            err->status = STATUS_INVALID_ARGUMENT;
        return err->status;
    }
    if (!*settings->manage_listen)
        return 0;
    if (rpc_server_listen_tcp(gate->server, settings->manage_listen, &port, err) != 0)
        return error_prefix(err, "--manage-listen");
    log_info(LOG_EVENT("management port"), LOG_STR("listen", settings->manage_listen),
             LOG_U64("port", port));
    return 0;
}

int access_check(const struct settings *settings, bool may_have_stored_keys, struct error *err)
{
    struct access *access = NULL;
    gid_t gid;
    if (open_access(settings, may_have_stored_keys, &access, err) != 0)
        return err->status;
    access_destroy(access);
    if (*settings->manage_group && find_group(settings->manage_group, &gid, err) != 0)
        return err->status;
    return 0;
}

int access_check_listeners(const struct settings *settings, struct error *err)
{
    char socket[PATH_MAX + sizeof("unix:")];
    snprintf(socket, sizeof(socket), "unix:%s", settings->socket);
    const struct rpc_listener listeners[] = {
        {"--socket", socket},
        {"--manage-listen", settings->manage_listen},
        {"--metrics", settings->metrics},
    };
    return rpc_listeners_check(listeners, sizeof(listeners) / sizeof(listeners[0]), err);
}
