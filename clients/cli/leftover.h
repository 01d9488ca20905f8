/* leftover.h: the manager and the servers that run on because the `sluice serve` that supervised
 * them was killed: found by the manager's lock, ended by what it knows of itself. One thread. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct cli;
struct error;

/* The manager that holds the lock of a state directory; 0: none does. */
pid_t leftover_manager(const char *state_dir);

/* Ends the servers of that manager, then it, with SIGTERM, and waits up to grace_ms for each.
 * DEADLINE_EXCEEDED where one has not ended. */
int leftover_stop(struct cli *cli, uint32_t grace_ms, struct error *err);

/* Kills the workers of a state directory whose manager is gone; leaves them alone where one runs.
 */
void leftover_end_workers(const char *state_dir);
