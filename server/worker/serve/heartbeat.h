/* heartbeat.h: sends the worker's load to every server at a fixed rate, independent of the
 * engine. The heartbeat thread waits for the clock only. Servers treat silence as a
 * stall. The same holds for a progress counter that does not move while requests are ready. */
#pragma once

/* The hello promises HEARTBEAT_IDLE_MS; with requests the worker sends more often. */
enum { HEARTBEAT_IDLE_MS = 1000, HEARTBEAT_BUSY_MS = 200 };

/* Pthread start routine; arg is the worker, whose engine is loaded. Runs until worker->ending;
 * worker->heartbeat ends its sleep. */
void *heartbeat_run(void *worker);
