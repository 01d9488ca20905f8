/* listeners.h: the addresses that the settings of one program have it listen on, looked at
 * together: what is no address, and two that cannot both be had, is said before anything is bound.
 * A server that is about to listen beside another shares its ports, and so would two listeners of
 * its own, each given connections that are the other's. At start, one thread. */
#pragma once

#include <stddef.h>

struct error;

struct rpc_listener {
    const char *setting; /* "--metrics": what error texts begin with */
    const char *address; /* "HOST:PORT" or "unix:PATH"; NULL or empty: it does not listen */
};

/* INVALID_ARGUMENT naming the setting whose address is none, or both settings where one's address
 * is, or holds, the other's ("0.0.0.0:8001" and "127.0.0.1:8001"). A port 0 is like no other. */
int rpc_listeners_check(const struct rpc_listener *listeners, size_t n_listeners,
                        struct error *err);
