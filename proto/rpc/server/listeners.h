/* listeners.h: checks the listen addresses of a program together before anything is bound.
 * Invalid and conflicting addresses are reported. The check is needed for a server that shares
 * its ports with a successor. Two listeners of its own could share a port, too. Single-threaded
 * at start. */
#pragma once

#include <stddef.h>

struct error;

struct rpc_listener {
    const char *setting; /* "--metrics": error texts begin with it */
    const char *address; /* "HOST:PORT" or "unix:PATH"; NULL or empty: not used */
};

/* INVALID_ARGUMENT with the setting whose address is invalid, or with both settings if their
 * addresses conflict ("0.0.0.0:8001" and "127.0.0.1:8001"). Port 0 conflicts with no port. */
int rpc_listeners_check(const struct rpc_listener *listeners, size_t n_listeners,
                        struct error *err);
