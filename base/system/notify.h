/* notify.h: the service manager's readiness protocol. Each message is a datagram to the socket
 * named by NOTIFY_SOCKET (a path, or an abstract name after '@'). Any thread. */
#pragma once

#include <stdint.h>

/* Sends `state` ("READY=1"). Does nothing if NOTIFY_SOCKET is not set or cannot be reached; gives
 * up after a second if the socket's queue stays full. */
void notify_send(const char *state);
/* Sends "WATCHDOG=1" and never waits, for threads that must not block. */
void notify_watchdog(void);
/* Sends `state` and a line for people, "STATUS=...", formatted as by printf. */
void notify_status(const char *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Reports that settings are being read again, until the next READY=1. */
void notify_reloading(void);
/* Returns the interval in which the service manager expects "WATCHDOG=1" (WATCHDOG_USEC); 0:
 * none. */
uint64_t notify_watchdog_ms(void);
