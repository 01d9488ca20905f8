/* takeover.h: a lock file allows one server, and lets a successor replace a running server. The
 * program's main thread only.
 *
 * The successor becomes ready, listens beside the running server (proto/rpc/guard/share.h) and
 * sends TAKEOVER_SIGNAL. The old server releases the lock and drains; the successor takes the
 * lock. Meanwhile the successor holds a lock of its own, PATH.next; the signal counts only while
 * that lock is held. So a stopped server that handles an old signal after its successor gave up
 * does not drain. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TAKEOVER_SIGNAL SIGUSR2

struct takeover {
    int lock; /* -1: not held */
    int next; /* PATH.next, held by a successor; -1: not held */
    int old;  /* pidfd of the running server; -1: none */
    int old_pid;
};

/* Takes the lock, or with `replace` finds its holder. `path` empty: no lock is used.
 * FAILED_PRECONDITION, reason LOCKED, if another server runs and may not be replaced, or another
 * successor is starting. */
int takeover_begin(const char *path, bool replace, struct takeover *out_takeover,
                   struct error *err);
/* Called once this server listens beside the old one: signals the old server and takes the
 * released lock. DEADLINE_EXCEEDED if it is not released within limit_ms; the old server still
 * serves then. */
int takeover_finish(struct takeover *takeover, const char *path, uint64_t limit_ms,
                    struct error *err);
/* For a running server that got the signal: true if a successor waits for the lock. */
bool takeover_is_wanted(const char *path);
/* For a running server: takes the lock again if its file was removed or replaced. Otherwise no
 * successor could find the server. Returns 1 if the file was created again, 0 if nothing was to
 * do. Negative: another process has the lock, or the file cannot be created. */
int takeover_renew(struct takeover *takeover, const char *path, struct error *err);
/* For a running server: calls `restore` if no successor is starting, and keeps successors out
 * meanwhile. Returns true if `restore` was called. */
bool takeover_alone(const char *path, void (*restore)(void));
/* Releases the lock. Does nothing if the lock is not held. */
void takeover_release(struct takeover *takeover);
