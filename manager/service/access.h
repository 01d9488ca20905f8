/* access.h: where the manager is listened for, and who may call it: the unix socket, the TCP port
 * with TLS, and the role that each RPC needs, which is checked before every handler. At start, one
 * thread; the server's questions, any thread. */
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

/* Zeroed but for `context` before access_guard. */
struct access_gate {
    struct context *context;
    struct access *access;        /* who may call; owned (access_destroy) */
    struct rpc_server *server;    /* that listens; borrowed */
    uint64_t n_key_changes;       /* of the catalog's keys, as `access` has them */
    _Atomic int64_t denials_at_s; /* any thread: the second of the last line on a denied call, */
    _Atomic uint32_t n_denials;   /* and how many there were in it */
    _Atomic uint64_t n_refused[N_RPC_LIMITS]; /* any thread */
};

/* Reads certificates and keys into gate->access and lets `config` ask for every call.
 * INVALID_ARGUMENT for a TCP port without TLS or without known callers, and for files that cannot
 * be used; FAILED_PRECONDITION where an RPC has no role. */
int access_guard(struct access_gate *gate, struct rpc_server_config *config, struct error *err);

/* Whether the addresses of `settings`, whose paths are found, can all be listened on: see
 * rpc_listeners_check. Before anything is made. */
int access_check_listeners(const struct settings *settings, struct error *err);

/* Whether a start would get past both access_guard and access_listen, as far as that can be told
 * without the database, whose keys (may_have_stored_keys) are not looked at, and without binding
 * anything. */
int access_check(const struct settings *settings, bool may_have_stored_keys, struct error *err);

/* Binds the socket (its folder, where that is the run directory, lets --manage-group through) and,
 * where the settings ask for it, the port, for gate->server. */
int access_listen(struct access_gate *gate, struct error *err);

/* Lets in whoever holds a key that the catalog has now, and nobody with one that it had. Cheap
 * where no key has changed. Loop thread. */
void access_take_keys(struct access_gate *gate);

/* The caller of an RPC, for handlers and for the audit. */
struct access_caller {
    const char *name; /* "uid:1001", "tls:NAME" or the tenant of a key; borrowed from the call */
    enum role role;
    bool has_uid; /* came over the unix socket */
    uint32_t uid;
};
void access_caller_of(const struct rpc_call *call, struct access_caller *out_caller);

/* FAILED_PRECONDITION naming the RPC where one of `services` has no row in the table of roles, or a
 * row names none of their RPCs. */
int access_check_roles(const struct rpc_service *services, size_t n_services, struct error *err);
/* The role that "/package.Service/Method" needs; ROLE_NONE: nobody may call it. Reflection needs a
 * viewer's. */
enum role access_role_needed(const char *path);
