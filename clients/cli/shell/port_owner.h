/* port_owner.h: tells if a TCP port is free, and finds the process that listens there.
 * Single-threaded. */
#pragma once

#include <stdbool.h>

enum { PORT_OWNER_NAME = 64 };

/* Returns pid and name of the process that listens on the port. 0 if there is no process, or if
 * this user may not inspect the process. */
long port_owner(unsigned port, char out_name[PORT_OWNER_NAME]);

/* Tries to listen on the address for a moment. Sets the port, and errno if the port cannot be used
 * (EADDRINUSE: another process listens there), else 0. False if the text is no address like
 * "127.0.0.1:8001" or "[::1]:8001"; host names other than localhost are not resolved. */
bool port_owner_probe(const char *address, unsigned *out_port, int *out_errno);
