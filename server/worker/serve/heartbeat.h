/* heartbeat.h: tells every server how the worker gets on, whatever the engine does: a thread of its
 * own that waits for nothing but the clock. Servers take silence, and progress that stands still
 * while requests are ready, for a stall. */
#pragma once

/* What a worker promises in its hello; with requests it speaks up more often. */
enum { HEARTBEAT_IDLE_MS = 1000, HEARTBEAT_BUSY_MS = 200 };

/* Pthread start routine; arg is the worker, whose engine is loaded. Runs until worker->ending; its
 * wake is worker->heartbeat. */
void *heartbeat_run(void *worker);
