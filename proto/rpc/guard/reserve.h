/* reserve.h: threads for gRPC when the system refuses new ones (a limit on processes or memory).
 *
 * gRPC 1.51 takes a thread that could not be started for one that runs. Its executor hands work to
 * that thread, and nobody does this work. The work may be the reading of a socket or the poller of
 * all sockets. Then every connection of the process stands still, for ever.
 *
 * So gRPC's calls of pthread_create come here first (guard.h). If the system refuses a thread, a
 * waiting thread of the reserve takes its place. The reserve has as many threads as gRPC's
 * executor may have. The reserve fills up again once the system allows new threads. Private to
 * proto/rpc. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Starts the threads of the reserve, once for the process. If the system refuses some of them,
 * these follow with gRPC's next threads. */
void rpc_reserve_start(void);

/* Returns how many threads wait. */
uint32_t rpc_reserve_n_waiting(void);
