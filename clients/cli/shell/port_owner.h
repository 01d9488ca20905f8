/* port_owner.h: finds the process that listens on a TCP port. Single-threaded. */
#pragma once

enum { PORT_OWNER_NAME = 64 };

/* Returns pid and name of the process that listens on the port. 0 if there is no process, or if
 * this user may not inspect the process. */
long port_owner(unsigned port, char out_name[PORT_OWNER_NAME]);
