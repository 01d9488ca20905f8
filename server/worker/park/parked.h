/* parked.h: a process that keeps packed weights in memory, for itself once it is woken (unpark.h)
 * or for a worker to come: no engine, no KV pool, no device. Beside them it has what is read of the
 * model's file before its weights: header and vocabulary (model_reader.h). Main thread only. */
#pragma once

struct error;
struct kept_weights;
struct worker;

/* Maps the memory that this process was handed (--packed-fds), so that it counts as this process's.
 * It must be sealed. FAILED_PRECONDITION, reason NOTHING_TO_KEEP, where it is not. */
int parked_keep(struct worker *worker, struct error *err);

/* Unmaps what was kept: once somebody else in this process maps it, or at the end. */
void parked_let_go(struct kept_weights *kept);
