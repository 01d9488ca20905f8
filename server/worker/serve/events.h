/* events.h: the one reader of the engine's events: turns them into step frames, one per server and
 * step. Its thread does nothing else, so a slow server or a slow request thread never holds it. */
#pragma once

/* Pthread start routine; arg is the worker, whose engine is loaded. Runs until worker->ending. */
void *events_run(void *worker);
