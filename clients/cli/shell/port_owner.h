/* port_owner.h: which process listens on a TCP port. One thread. */
#pragma once

enum { PORT_OWNER_NAME = 64 };

/* Pid and name of the process that listens on the port. 0 where no process listens that this user
 * may inspect. */
long port_owner(unsigned port, char out_name[PORT_OWNER_NAME]);
