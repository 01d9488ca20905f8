/* file.h: the state database as files: making folders durable, copying a database whole,
 * putting a restored one in its place. Nothing here needs the store; whoever calls holds the lock
 * of the state directory, and no connection is open unless said. One thread at a time. */
#pragma once

#include <stddef.h>

struct error;
struct sqlite3;

/* Makes the names in a file's folder durable. */
int store_file_sync_folder(const char *path, struct error *err);

/* "<folder of path>/backup/<name>-<UTC time>.db", a name that nothing has; makes the folder (0700).
 */
int store_file_backup_path(const char *path, const char *name, char *out, size_t n_out,
                           struct error *err);

/* Copies the database of an open connection to `to`, which appears whole, checked and durable, or
 * not at all: one file, without a log beside it. ALREADY_EXISTS where there is such a file. */
int store_file_copy(struct sqlite3 *from, const char *to, struct error *err);

/* Writes the log beside the database again (to a new file, or in place where there is no room for
 * one), and waits until it is on the disk. After a sync that failed Linux shows what was written
 * though it may never be there, and a later sync does not write it: what is read from such a log is
 * believed, and everything after it is lost with it. To be done before a database is opened. */
int store_file_rewrite_log(const char *path, struct error *err);

/* Takes the checked database at `path`.restored, if there is one, as the database: what was there
 * (with its log) is kept in the folder backup, and told in out_aside (empty: nothing was). May be
 * cut anywhere and done again. */
int store_file_finish_restore(const char *path, char *out_aside, size_t n_out, struct error *err);

/* Names beside the database. */
extern const char store_file_restored[]; /* whole, to be taken as the database */
extern const char store_file_part[];     /* being written */
