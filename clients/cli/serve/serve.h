/* serve.h: one run of `sluice serve`. Two threads share this struct: the supervisor (signals,
 * children; serve_supervise.c) and the loader (models; serve_load.c). */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "clients/cli/serve/child.h"
#include "clients/cli/serve/serve_http.h"
#include "clients/cli/serve/serve_settings.h"

struct cli;
struct error;

struct serve {
    struct cli *cli;
    int64_t started_unix_ns;
    char bin_dir[PATH_MAX];
    char manager_path[PATH_MAX + 32], server_path[PATH_MAX + 32];
    char manager_log[1100], server_log[1100], socket_path[1100], routes_path[1100], lock_path[1100];
    /* the server's unix socket, for calls from this program */
    char inner_path[1100], inner_target[1200];
    char server_lock[1200]; /* held by the serving process: the child, or a successor */
    int lock_fd;
    bool has_terminal;        /* a SIGHUP can also mean that the terminal has closed */
    struct child children[2]; /* manager, server */
    int signals, loaded;      /* signalfd; eventfd: the loader is done */
    int ends;                 /* signalfd of SIGCHLD: a child or an orphan has ended */
    _Atomic int load_status;  /* exit status of the load, 0 or 1; set before `loaded` */
    _Atomic pid_t server_pid; /* pid of the current server; 0: none */
    _Atomic bool answered[2]; /* a child has answered once, so its command line is right */
    char dial[1200];          /* the data plane's address as seen from here; empty: unknown */
    char address[256];        /* listen address with a port that the kernel chose; loader only */
    char moved_http[SERVE_HTTP_ADDRESS_BYTES]; /* HTTP address in place of the default; or empty */
    struct serve_settings settings;
};

/* Body of the loader thread; arg: the struct serve. Waits for manager and server and sets
 * `answered`. Then loads the models of the command line, or follows the restored models if there
 * are none. Sets load_status, then writes to `loaded`. Then announces dead replicas until
 * cli->ending and the manager's end. Returns NULL. */
void *serve_load(void *arg);

/* serve_supervise.c, for the supervisor's thread. Opens the signal descriptors, before a child
 * starts. The end of the terminal also stops serve, except under nohup. */
int serve_open_signals(struct serve *s, struct error *err);
/* Supervises until a signal, a child that cannot run, or a failed load of a given file. Returns the
 * exit code. */
int serve_supervise(struct serve *s);

/* In serve_paths.c. Checks that the models of the command line exist and can be read. The manager
 * finds models below a model root itself. */
int serve_check_paths(const struct cli *cli, struct error *err);
