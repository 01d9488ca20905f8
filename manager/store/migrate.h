/* migrate.h: bringing a state database to this program's schema: one transaction with
 * user_version inside, and before it a copy of what is there in the folder backup. */
#pragma once

struct error;
struct store_db;

/* `path` of the database that db has open. A database with nothing in it gets the schema whole, and
 * no copy is made. DATA_LOSS where it is another program's, as one with tables and without a number
 * of ours is, FAILED_PRECONDITION (STATE_STORE_NEWER) where its schema is newer. */
int store_migrate(struct store_db *db, const char *path, struct error *err);

/* The same look without a change: *out_version is the schema's number, 0 to this program's. */
int store_migrate_look(struct store_db *db, unsigned *out_version, struct error *err);
