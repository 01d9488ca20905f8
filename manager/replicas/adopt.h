/* adopt.h: what a new manager does about the processes and folders that an earlier one left. Loop
 * thread only, at start. */
#pragma once

struct supervisor;

/* Takes over each worker whose replica, epoch and process are as recorded; kills every other worker
 * of this run directory; reads the exit reports of those that ended meanwhile; removes folders of
 * replicas that are recorded no longer. */
void adopt_all(struct supervisor *supervisor);
