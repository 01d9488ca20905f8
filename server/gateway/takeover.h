/* takeover.h: one server per lock file, and how the next one takes its place while it serves. The
 * program's main thread only.
 *
 * The successor listens beside the one that runs (proto/rpc/guard/share.h) once it is ready, sends
 * it TAKEOVER_SIGNAL, and has the lock when that one has given it up: it drains from then on. All
 * the while it holds a lock of its own, PATH.next: without that the signal says nothing. One that
 * was stopped and gets it when its successor has given up must not drain for nobody. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TAKEOVER_SIGNAL SIGUSR2

struct takeover {
    int lock; /* -1: not held */
    int next; /* the successor's own; -1: not held */
    int old;  /* pidfd of the server that runs; -1: none */
    int old_pid;
};

/* Takes the lock, or with `replace` finds who has it. `path` empty: there is none, and nobody is
 * kept out. FAILED_PRECONDITION, reason LOCKED, where another server runs and is not to be
 * replaced, or another successor is at it. */
int takeover_begin(const char *path, bool replace, struct takeover *out_takeover,
                   struct error *err);
/* After this server listens beside the old one: tells it, and takes the lock that it gives up.
 * DEADLINE_EXCEEDED where it has not within limit_ms; then it still serves. */
int takeover_finish(struct takeover *takeover, const char *path, uint64_t limit_ms,
                    struct error *err);
/* To one that runs, and has the signal: whether there is a successor that waits for the lock. */
bool takeover_is_wanted(const char *path);
/* To one that runs: has the lock again where its file was removed or replaced, without which no
 * successor finds it. 1: it was made again, 0: there was no need, negative: another has it, or it
 * cannot be made. */
int takeover_renew(struct takeover *takeover, const char *path, struct error *err);
/* To one that runs: `restore` is called where no successor is at it, and none begins meanwhile. */
bool takeover_alone(const char *path, void (*restore)(void));
/* Another may have the lock. Harmless where it is not held. */
void takeover_release(struct takeover *takeover);
