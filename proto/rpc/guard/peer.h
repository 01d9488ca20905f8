/* peer.h: identifies the process at the other end of a unix socket. For an accepted connection,
 * gRPC 1.51 keeps only the result of getpeername(). The call goes through the dynamic linker, so
 * the whole program calls this file's version. For a connected unix socket it returns a name
 * made of two parts. The peer's credentials (SO_PEERCRED) are the kernel's, from the moment of
 * connect. A random number, drawn at start, prevents that a client binds a socket of that name.
 * Private to proto/rpc. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct rpc_peer_ids {
    uint32_t uid, gid;
    int32_t pid;
};

/* True if gRPC's name of a peer ("unix:…") is one of these names; fills its ids. */
bool rpc_peer_parse(const char *peer, struct rpc_peer_ids *out_ids);

/* Connects to a unix socket and closes the connection. Returns 0, or the errno of the failure. */
int rpc_peer_connect(const char *path);
/* True if a process listens on the unix socket. */
bool rpc_peer_answers(const char *path);
