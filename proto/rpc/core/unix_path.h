/* unix_path.h: gRPC's names of a unix socket. gRPC reads the text after "unix:" as a URI: '#'
 * and '?' end the path, and %20 is a space. For clients a comma ends the address. Any thread. */
#pragma once

struct error;

/* Returns the address on which a server listens; owned. NULL if memory is exhausted. */
char *rpc_unix_path_address(const char *path);

/* Makes the target to which a client connects. A folder with a comma in its path is opened, and
 * the target names its descriptor. *out_fd is owned and must stay open as long as the channel;
 * -1: none. *out_target is owned. INVALID_ARGUMENT if the socket's own name has a comma,
 * UNAVAILABLE if the folder cannot be opened. */
int rpc_unix_path_target(const char *path, char **out_target, int *out_fd, struct error *err);

/* INVALID_ARGUMENT if no gRPC client could reach the socket. */
int rpc_unix_path_check(const char *path, struct error *err);
