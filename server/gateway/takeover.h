/* takeover.h: one server per lock file, and how the next one takes its place while it serves. The
 * program's main thread only.
 *
 * The successor listens beside the one that runs (proto/rpc/rpc_share.h) once it is ready, sends it
 * TAKEOVER_SIGNAL, and has the lock when that one has given it up: it drains from then on. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TAKEOVER_SIGNAL SIGUSR2

struct takeover {
    int lock; /* -1: not held */
    int old;  /* pidfd of the server that runs; -1: none */
    int old_pid;
};

/* Takes the lock, or with `replace` finds who has it. `path` empty: there is none, and nobody is
 * kept out. FAILED_PRECONDITION, reason LOCKED, where another server runs and is not to be
 * replaced. */
int takeover_begin(const char *path, bool replace, struct takeover *out_takeover,
                   struct error *err);
/* After this server listens beside the old one: tells it, and takes the lock that it gives up.
 * DEADLINE_EXCEEDED where it has not within limit_ms; then it still serves. */
int takeover_finish(struct takeover *takeover, const char *path, uint64_t limit_ms,
                    struct error *err);
/* Another may have the lock. Harmless where it is not held. */
void takeover_release(struct takeover *takeover);
