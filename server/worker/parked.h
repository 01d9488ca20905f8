/* parked.h: a process that keeps packed weights in memory for a worker to come, and nothing else:
 * no engine, no KV pool, no device. Main thread only. */
#pragma once

struct error;
struct worker;

/* Maps the memory that this process was handed (--packed-fds), so that it counts as this process's.
 * It must be sealed. FAILED_PRECONDITION, reason NOTHING_TO_KEEP, where it is not. */
int parked_keep(struct worker *worker, struct error *err);
