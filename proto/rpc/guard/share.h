/* share.h: ports and unix sockets that one process hands over to its successor. For proto/http
 * too; private to proto. At start, one thread; rpc_share_end and unlink from any.
 *
 * A TCP port is bound by one process alone, as ever, which then allows others of the same user to
 * bind it too (SO_REUSEPORT, set after the bind: who binds without it is still refused). Its
 * successor does, and tells the kernel to give it every new connection (SO_ATTACH_REUSEPORT_CBPF,
 * socket(7)); so when the first one closes, none is left in its queue. A unix socket is bound under
 * a name of its own, which then takes the place of the other in one step, and the other's is kept
 * under another name until it is settled who stays; unlink() of this file, in
 * place of the C library's, lets the first one's gRPC not take it away. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;

enum rpc_share {
    RPC_SHARE_NONE,   /* the port is this process's alone */
    RPC_SHARE_FIRST,  /* and a successor may bind it too */
    RPC_SHARE_BESIDE, /* of a process that shares it: this is the successor */
};

/* Between the two, bind() of this thread, in place of the C library's, shares TCP sockets; the end
 * has the kernel give what is new to those that listen by then. */
void rpc_share_begin(enum rpc_share share);
void rpc_share_end(void);
/* The successor has what is new: this process's TCP sockets listen no more, though they are not
 * closed. So there are never more than two on a port, whoever comes after that one. */
void rpc_share_hand_over(void);

/* A name in the folder of `path` to bind in its stead, to be moved there by rpc_share_move.
 * INVALID_ARGUMENT where it would be too long for a socket. */
int rpc_share_name(const char *path, char *out_name, size_t n_bytes, struct error *err);
int rpc_share_move(const char *name, const char *path, struct error *err);
/* Whether this process stays. If not, what it has moved away is where it was, in one step. */
void rpc_share_settle(bool stays);
/* From here on the file that `path` is now is this process's, which must not remove another.
 * `path` is borrowed until rpc_share_forget, which removes the file if it is still that one, or,
 * where nothing is settled, puts the other's back. */
void rpc_share_own(const char *path);
void rpc_share_forget(const char *path);
/* Whether another's file that nobody listens behind, or none, is where one of this process's was,
 * which it can have back: a successor that is killed has put nothing back itself. */
bool rpc_share_is_lost(void);
/* Puts all such files back, each in one step. No successor may be at it meanwhile. */
void rpc_share_restore(void);
