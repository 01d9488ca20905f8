/* serve.h: one run of `sluice serve`. Two threads share it: the supervisor (signals, children;
 * cmd_serve.c) and the loader (models; serve_load.c). */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "clients/cli/serve/child.h"
#include "clients/cli/serve/serve_settings.h"

struct cli;

struct serve {
    struct cli *cli;
    int64_t started_unix_ns;
    char bin_dir[PATH_MAX];
    char manager_path[PATH_MAX + 32], server_path[PATH_MAX + 32];
    char manager_log[1100], server_log[1100], socket_path[1100], routes_path[1100], lock_path[1100];
    char inner_path[1100], inner_target[1200]; /* the server's unix socket, for this program */
    char server_lock[1200]; /* who has it serves; the child, or one that took over from it */
    int lock_fd;
    bool has_terminal;        /* of which the end is told by a SIGHUP too */
    struct child children[2]; /* manager, server */
    int signals, loaded;      /* signalfd; eventfd: the loader is done */
    int ends;                 /* signalfd of SIGCHLD: a child or an orphan has ended */
    _Atomic int load_status;  /* 0 or 1, set before `loaded` */
    _Atomic pid_t server_pid; /* of the server that runs now; 0: none */
    _Atomic bool answered[2]; /* the children did, once: their command lines are good */
    char dial[1200];          /* where the data plane is reached from here; empty: unknown */
    char address[256];        /* where it listens, of a port that the kernel chose; the loader's */
    struct serve_settings settings;
};

/* The loader, a thread's body; arg: the struct serve. Waits for manager and server, which it tells
 * by `answered`, then loads what the command line names, or follows what comes back where it names
 * nothing. Sets load_status and writes to `loaded` at its end. Returns NULL. */
void *serve_load(void *arg);
