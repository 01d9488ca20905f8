/* notify.h: the service manager's readiness protocol: one datagram to the socket named by
 * NOTIFY_SOCKET (a path, or an abstract name after '@'). Any thread. */
#pragma once

#include <stdint.h>

/* Sends `state` ("READY=1"). Does nothing where NOTIFY_SOCKET is not set or cannot be reached. */
void notify_send(const char *state);
/* How often the service manager wants to hear "WATCHDOG=1" of this process (WATCHDOG_USEC); 0: it
 * does not. */
uint64_t notify_watchdog_ms(void);
