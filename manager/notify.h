/* notify.h: the service manager's readiness protocol: one datagram to the socket named by
 * NOTIFY_SOCKET (a path, or an abstract name after '@'). Any thread. */
#pragma once

/* Sends `state` ("READY=1"). Does nothing where NOTIFY_SOCKET is not set or cannot be reached. */
void notify_send(const char *state);
