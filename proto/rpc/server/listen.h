/* listen.h: checks before gRPC core binds an address: gRPC would replace a live socket, and
 * gives no reason for a failure. Also used by proto/http; private to proto; single-threaded at
 * start. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct addrinfo;
struct error;

/* INVALID_ARGUMENT if the path is empty or too long for a unix socket. */
int rpc_listen_check_unix(const char *path, struct error *err);

/* Removes a socket file on which no process listens. ALREADY_EXISTS if a process listens,
 * FAILED_PRECONDITION if the file is not a socket, INVALID_ARGUMENT if the path is too long. */
int rpc_listen_claim_unix(const char *path, struct error *err);

/* Binds "host:port" for a test and releases it. ALREADY_EXISTS if the address is in use, with
 * the process if known. INVALID_ARGUMENT for an invalid address. `beside`: a port that its owner
 * shares (share.h) counts as free. */
int rpc_listen_probe_tcp(const char *address, bool beside, struct error *err);

/* INVALID_ARGUMENT if "host:port" cannot be resolved. */
int rpc_listen_check_tcp(const char *address, struct error *err);

/* Resolves "host:port" to addresses to listen on; *out_infos is owned (freeaddrinfo). False if
 * it cannot be resolved. */
bool rpc_listen_resolve(const char *address, struct addrinfo **out_infos);

/* True if only this machine can reach "host:port". False if unknown. */
bool rpc_listen_is_loopback(const char *address);
