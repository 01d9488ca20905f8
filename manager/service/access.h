/* access.h: the addresses that the manager listens on, and the role that each RPC needs. Roles are
 * checked before every handler. At start, one thread; the questions of the server, any thread. */
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
    struct access *access;        /* the callers that may call; owned (access_destroy) */
    struct rpc_server *server;    /* that listens; borrowed */
    uint64_t n_key_changes;       /* changes of the catalog's keys that `access` has */
    _Atomic int64_t denials_at_s; /* any thread: the second of the last line on a denied call, */
    _Atomic uint32_t n_denials;   /* and how many there were in it */
    _Atomic uint64_t n_refused[N_RPC_LIMITS]; /* any thread */
};

/* Reads certificates and keys into gate->access and lets `config` ask for every call.
 * INVALID_ARGUMENT: a TCP port without TLS or without known callers, or a file that cannot be used.
 * FAILED_PRECONDITION: an RPC has no role. */
int access_guard(struct access_gate *gate, struct rpc_server_config *config, struct error *err);

/* Checks with rpc_listeners_check that all addresses of `settings` can be listened on. The paths of
 * `settings` are found already; nothing else is made yet. */
int access_check_listeners(const struct settings *settings, struct error *err);

/* Checks what access_guard and access_listen would refuse, without the database and without binding
 * an address. may_have_stored_keys: the database may have keys. */
int access_check(const struct settings *settings, bool may_have_stored_keys, struct error *err);

/* Binds the socket and, where the settings ask for one, the port, for gate->server. Opens the run
 * directory to --manage-group where the socket lies there. */
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

/* FAILED_PRECONDITION, naming the RPC: an RPC of `services` has no row in the table of roles, or a
 * row of the table has no RPC. */
int access_check_roles(const struct rpc_service *services, size_t n_services, struct error *err);
/* The role that "/package.Service/Method" needs; ROLE_NONE: nobody may call it. Reflection needs a
 * viewer's. */
enum role access_role_needed(const char *path);
