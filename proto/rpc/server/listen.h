/* listen.h: what must be true before gRPC core binds an address, which alone would replace a
 * live socket and not say why it failed; for proto/http too. Private to proto; at start, one
 * thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct addrinfo;
struct error;

/* INVALID_ARGUMENT where no unix socket can have that path: empty, or too long. */
int rpc_listen_check_unix(const char *path, struct error *err);

/* Removes a socket file nobody listens behind. ALREADY_EXISTS where somebody does,
 * FAILED_PRECONDITION where the file is no socket, INVALID_ARGUMENT where the path is too long for
 * a socket. */
int rpc_listen_claim_unix(const char *path, struct error *err);

/* Tries to bind "host:port" and lets it go again. ALREADY_EXISTS where it is in use, with the
 * process that holds it where that can be told; INVALID_ARGUMENT where it is no address. `beside`:
 * a port that its owner shares (share.h) is free. */
int rpc_listen_probe_tcp(const char *address, bool beside, struct error *err);

/* INVALID_ARGUMENT where "host:port" is no address of this machine's kind. */
int rpc_listen_check_tcp(const char *address, struct error *err);

/* The addresses that "host:port" is, to listen on; *out_infos is owned (freeaddrinfo). False where
 * it is none. */
bool rpc_listen_resolve(const char *address, struct addrinfo **out_infos);

/* Whether "host:port" is reached from this machine alone. False where it cannot be told. */
bool rpc_listen_is_loopback(const char *address);
