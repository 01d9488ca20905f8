/* events.h: the only reader of the engine's events. Events become step frames, one for each
 * server and step. Its thread does nothing else, so neither a slow server nor a slow request
 * thread can block it. */
#pragma once

/* Pthread start routine; arg is the worker, whose engine is loaded. Runs until worker->ending. */
void *events_run(void *worker);
