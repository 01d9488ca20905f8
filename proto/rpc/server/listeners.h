/* listeners.h: checks the listen addresses of a program together before anything is bound.
 * Invalid and conflicting addresses are reported. The check is needed for a server that shares
 * its ports with a successor. Two listeners of its own could share a port, too. Single-threaded
 * at start. */
#pragma once

#include <stddef.h>

struct error;

enum { RPC_MAX_ADDRESSES = 8, RPC_ADDRESS_BYTES = 256 };

/* The addresses of an option that takes several. */
struct rpc_addresses {
    size_t n;
    char list[RPC_MAX_ADDRESSES][RPC_ADDRESS_BYTES];
};

/* Splits a text at its commas and spaces; NULL: none. INVALID_ARGUMENT with the setting for too
 * many addresses, or a long one. */
int rpc_listeners_split(const char *setting, const char *text, struct rpc_addresses *out_addresses,
                        struct error *err);

struct rpc_listener {
    const char *setting; /* "--metrics": error texts begin with it */
    const char *address; /* "HOST:PORT" or "unix:PATH"; NULL or empty: not used */
};

/* INVALID_ARGUMENT with the setting whose address is invalid, or with both settings if their
 * addresses conflict ("0.0.0.0:8001" and "127.0.0.1:8001"). Port 0 conflicts with no port. */
int rpc_listeners_check(const struct rpc_listener *listeners, size_t n_listeners,
                        struct error *err);
