/* share.h: hands ports and unix sockets over to a successor process. Also used by proto/http;
 * private to proto. Single-threaded at start; rpc_share_end and unlink from any thread.
 *
 * TCP: a process binds the port alone and then sets SO_REUSEPORT. So other processes of the same
 * user may bind the port with that option, and binds without it still fail. The successor binds,
 * and makes the kernel give it every new connection (SO_ATTACH_REUSEPORT_CBPF, socket(7)). So no
 * connection is left in the first process's queue when that closes.
 *
 * Unix: the successor binds a socket under a temporary name and renames it over the old one in
 * one step. The old socket is kept under another name until it is settled which process stays.
 * This file's unlink(), in place of libc's, keeps the first process's gRPC from removing the
 * successor's file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;

enum rpc_share {
    RPC_SHARE_NONE,   /* the port belongs to this process only */
    RPC_SHARE_FIRST,  /* a successor may bind the port, too */
    RPC_SHARE_BESIDE, /* this process is the successor of a process that shares the port */
};

/* Between begin and end, bind() of this thread shares TCP sockets. The end makes the kernel give
 * new connections to the sockets that listen by then. */
void rpc_share_begin(enum rpc_share share);
void rpc_share_end(void);
/* The successor takes new connections: this process's TCP sockets stop listening, but are not
 * closed. So a port never has more than two sockets. */
void rpc_share_hand_over(void);

/* Makes a temporary name in the folder of `path`, which rpc_share_move renames to `path`.
 * INVALID_ARGUMENT if the name would be too long for a socket. */
int rpc_share_name(const char *path, char *out_name, size_t n_bytes, struct error *err);
int rpc_share_move(const char *name, const char *path, struct error *err);
/* `stays`: true if this process stays. Otherwise the replaced files are restored, each in one
 * step. */
void rpc_share_settle(bool stays);
/* From now on this process owns the file at `path`, and does not remove another process's file
 * there. `path` is borrowed until rpc_share_forget. That function removes the file if it is
 * still the same. If nothing is settled, it restores the other process's file. */
void rpc_share_own(const char *path);
void rpc_share_forget(const char *path);
/* True if one of this process's sockets was replaced by a dead file, or removed, and can be
 * restored. A killed successor leaves that state. */
bool rpc_share_is_lost(void);
/* Restores all such files, each in one step. No successor may be starting meanwhile. */
void rpc_share_restore(void);
