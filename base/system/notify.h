/* notify.h: the service manager's readiness protocol: one datagram to the socket named by
 * NOTIFY_SOCKET (a path, or an abstract name after '@'). Any thread. */
#pragma once

#include <stdint.h>

/* Sends `state` ("READY=1"). Does nothing where NOTIFY_SOCKET is not set or cannot be reached, and
 * gives up after a second where nobody reads it. */
void notify_send(const char *state);
/* Sends "WATCHDOG=1", and never waits: from threads on which all depends. */
void notify_watchdog(void);
/* The same with a line for people, "STATUS=...", as by printf. */
void notify_status(const char *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Settings are read again, until the next READY=1. */
void notify_reloading(void);
/* How often the service manager wants to hear "WATCHDOG=1" of this process (WATCHDOG_USEC); 0: it
 * does not. */
uint64_t notify_watchdog_ms(void);
