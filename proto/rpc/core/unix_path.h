/* unix_path.h: the names under which gRPC takes a Unix socket. gRPC reads the text behind "unix:"
 * as a URI. There '#' and '?' end the path, and %20 is a space. For clients a comma ends the
 * address. Any thread. */
#pragma once

struct error;

/* The address that a server listens on. *out_address is owned; NULL where memory is exhausted. */
char *rpc_unix_path_address(const char *path);

/* The target that a client connects to. A folder with a comma in its path is opened, and the target
 * names its descriptor. *out_fd is owned and stays open as long as the channel; -1: there is none.
 * *out_target is owned. INVALID_ARGUMENT where the socket's own name has a comma, UNAVAILABLE where
 * the folder cannot be opened. */
int rpc_unix_path_target(const char *path, char **out_target, int *out_fd, struct error *err);

/* INVALID_ARGUMENT where no client of gRPC could reach the socket. */
int rpc_unix_path_check(const char *path, struct error *err);
