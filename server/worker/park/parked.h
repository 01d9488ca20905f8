/* parked.h: a parked process holds packed weights in memory, for its own wake (unpark.h) or for
 * another worker. The process has the model's header and vocabulary (model_reader.h), but no
 * engine, KV pool or device. Main thread only. */
#pragma once

struct error;
struct kept_weights;
struct worker;

/* Maps the memory of --packed-fds, so that the memory counts as this process's.
 * FAILED_PRECONDITION, reason NOTHING_TO_KEEP, if the memory is not sealed. */
int parked_keep(struct worker *worker, struct error *err);

/* Unmaps the weights. Called after the engine has mapped the same memory, or at the end. */
void parked_let_go(struct kept_weights *kept);
