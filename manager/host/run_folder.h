/* run_folder.h: run/replica-ID: what a worker and its manager leave each other on disk: the socket,
 * the log, and the exit report. Any thread. */
#pragma once

#include "manager/base/pb.h"

struct error;

/* Makes the folder for a process that is about to start, with nothing in it of the one before. */
int run_folder_prepare(const char *run_dir, const char *replica_id, struct error *err);

/* The exit report that lies there; owned (rpc_message_free). NULL: none, or none that can be read.
 */
pb_exit *run_folder_read_exit(const char *run_dir, const char *replica_id);

void run_folder_remove(const char *run_dir, const char *replica_id);

/* Calls `found` for each replica that has a folder. It may remove that folder. */
void run_folder_list(const char *run_dir, void (*found)(void *arg, const char *replica_id),
                     void *arg);
