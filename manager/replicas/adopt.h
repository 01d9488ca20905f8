/* adopt.h: how a new manager takes over the processes and folders that an earlier manager left.
 * Loop thread only, at start. */
#pragma once

struct supervisor;

/* Adopts each worker whose replica, epoch and process match the record. Kills every other worker
 * of this run directory. Reads the exit reports of workers that ended meanwhile. Removes the
 * folders of replicas without a row. */
void adopt_all(struct supervisor *supervisor);
