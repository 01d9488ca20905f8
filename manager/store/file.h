/* file.h: the state database as files: durable names, whole copies, and putting a restored
 * database in place. Needs no store. The caller holds the lock of the state directory. No
 * connection is open unless stated. Single-threaded. */
#pragma once

#include <stddef.h>

struct error;
struct sqlite3;

/* Makes the names in the file's folder durable. */
int store_file_sync_folder(const char *path, struct error *err);

/* Writes an unused name "<folder of path>/backup/<name>-<UTC time>.db" to `out` and creates the
 * folder (0700). */
int store_file_backup_path(const char *path, const char *name, char *out, size_t n_out,
                           struct error *err);

/* Copies the database of an open connection to the file `to`. The copy is one file without a
 * log, and appears complete, checked and durable, or not at all. ALREADY_EXISTS where the file
 * exists. */
int store_file_copy(struct sqlite3 *from, const char *to, struct error *err);

/* Rewrites the log beside the database and waits until it is on the disk. Uses a new file, or
 * writes in place where there is no room. Background: after a failed sync Linux may show data
 * that never reaches the disk, and later syncs skip them. A database that trusted such data
 * would lose them with all that follows. Must be called before a database is opened. */
int store_file_rewrite_log(const char *path, struct error *err);

/* Puts the checked database `path`.restored, if present, in place of the database. The old
 * database and its log move to the folder backup; out_aside names the file (empty: there was
 * none). Safe to interrupt at any point and to repeat. */
int store_file_finish_restore(const char *path, char *out_aside, size_t n_out, struct error *err);

/* Suffixes of names beside the database. */
extern const char store_file_restored[]; /* complete, to be put in place */
extern const char store_file_part[];     /* not yet complete */
