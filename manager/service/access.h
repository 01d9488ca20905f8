/* access.h: the addresses that the manager listens on, and the role that each RPC needs. Roles
 * are checked before every handler. Start functions: one thread; checks of calls: any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/access/role.h"
#include "proto/rpc/server/server.h"

struct access;
struct context;
struct error;
struct rpc_call;
struct settings;

/* Zeroed except `context` before access_guard. */
struct access_gate {
    struct context *context;
    struct access *access;     /* the known callers; owned (access_destroy) */
    struct rpc_server *server; /* the listening server; borrowed */
    uint64_t n_key_changes;    /* change count of the catalog's keys at the last copy to `access` */
    _Atomic int64_t denials_at_s; /* any thread: second of the last log line about a denied call */
    _Atomic uint32_t n_denials;   /* and denied calls in that second */
    _Atomic uint64_t n_refused[N_RPC_LIMITS]; /* any thread */
};

/* Reads certificates and keys into gate->access and makes `config` check every call.
 * INVALID_ARGUMENT: a TCP port without TLS or without known callers, or an unusable file.
 * FAILED_PRECONDITION: an RPC has no role. */
int access_guard(struct access_gate *gate, struct rpc_server_config *config, struct error *err);

/* Checks with rpc_listeners_check that the manager can listen on all addresses of `settings`.
 * The paths of `settings` must be resolved. Nothing else needs to exist yet. */
int access_check_listeners(const struct settings *settings, struct error *err);

/* Makes the checks of access_guard and access_listen without the database and without binding an
 * address. may_have_stored_keys: the database may hold keys. */
int access_check(const struct settings *settings, bool may_have_stored_keys, struct error *err);

/* Binds the socket and, where set, the port, for gate->server. Opens the run directory to
 * --manage-group where the socket lies there. */
int access_listen(struct access_gate *gate, struct error *err);

/* Loads the catalog's keys into the access check, so that revoked keys are refused. Cheap where
 * no key has changed. Loop thread. */
void access_take_keys(struct access_gate *gate);

/* The caller of an RPC, for handlers and for audit events. */
struct access_caller {
    const char *name; /* "uid:1001", "tls:NAME" or the tenant of a key; borrowed from the call */
    enum role role;
    bool has_uid; /* the call came over the unix socket */
    uint32_t uid;
};
void access_caller_of(const struct rpc_call *call, struct access_caller *out_caller);

/* The role that "/package.Service/Method" needs; ROLE_NONE: no caller may use the method.
 * Reflection needs the viewer role. */
enum role access_role_needed(const char *path);
