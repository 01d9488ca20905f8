/* management.h: where the manager is listened for, and who may call it: the unix socket, the TCP
 * port with TLS, and before every handler a look at who calls and at the table of roles. At start,
 * one thread; what the server asks, any thread. */
#pragma once

#include <stdbool.h>

struct error;
struct manager;
struct rpc_call;
struct rpc_server_config;
struct settings;

/* Reads certificates and keys into manager->access (owned by the manager) and lets `config` ask for
 * every call. INVALID_ARGUMENT for a TCP port without TLS or without known callers, and for files
 * that cannot be used; FAILED_PRECONDITION where an RPC has no role. */
int management_guard(struct manager *manager, struct rpc_server_config *config, struct error *err);

/* Whether the addresses of `settings`, whose paths are found, can all be listened on: see
 * rpc_listeners_check. Before anything is made. */
int management_check_listeners(const struct settings *settings, struct error *err);

/* Whether a start would get past both management_guard and management_listen, as far as that can be
 * told without the database, whose keys (may_have_stored_keys) are not looked at, and without
 * binding anything. */
int management_check(const struct settings *settings, bool may_have_stored_keys, struct error *err);

/* Binds the socket (its folder, where that is the run directory, lets --manage-group through) and,
 * where it is asked for, the port. */
int management_listen(struct manager *manager, struct error *err);

/* Lets in whoever holds a key that the catalog has now, and nobody with one that it had. Cheap
 * where no key has changed. Loop thread. */
void management_take_keys(struct manager *manager);

/* rpc_server_config.authorize; `arg` is the manager. PERMISSION_DENIED names the role that is
 * needed. */
int management_authorize(void *arg, struct rpc_call *call, struct error *err);
