/* peer.h: which process is at the other end of a Unix socket. gRPC 1.51 does not say: of a
 * connection that it accepts it keeps what getpeername() answers. It calls that through the
 * dynamic linker, so that the one of this file is called instead, by the whole program; for a
 * connected Unix socket it answers a name made of the peer's credentials (SO_PEERCRED: the
 * kernel's word, of the moment of connect) and of a number drawn at start, so that no client can
 * bind itself a socket of such a name. Private to proto/rpc. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct rpc_peer_ids {
    uint32_t uid, gid;
    int32_t pid;
};

/* Whether gRPC's name of a peer ("unix:…") is one of those above, and whose. */
bool rpc_peer_parse(const char *peer, struct rpc_peer_ids *out_ids);

/* Connects to a Unix socket and lets the connection go. 0, or the errno of the failure. */
int rpc_peer_connect(const char *path);
/* Whether a process listens behind the Unix socket. */
bool rpc_peer_answers(const char *path);
