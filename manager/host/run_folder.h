/* run_folder.h: the folder run/replica-ID that a worker and the manager share: socket, log and
 * exit report. Any thread. */
#pragma once

#include "manager/base/pb.h"

struct error;

/* Creates the folder for a process that is about to start, and removes the files of the earlier
 * process. */
int run_folder_prepare(const char *run_dir, const char *replica_id, struct error *err);

/* Reads the exit report in the folder; owned (rpc_message_free). NULL: there is none, or it is
 * unreadable. */
pb_exit *run_folder_read_exit(const char *run_dir, const char *replica_id);

void run_folder_remove(const char *run_dir, const char *replica_id);

/* Calls `found` for each replica that has a folder. `found` may remove that folder. */
void run_folder_list(const char *run_dir, void (*found)(void *arg, const char *replica_id),
                     void *arg);
