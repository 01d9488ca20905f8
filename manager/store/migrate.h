/* migrate.h: migrating a state database to this program's schema, in one transaction that
 * includes user_version. A copy in the folder backup is made before. */
#pragma once

struct error;
struct store_db;

/* `path`: the database that db has open. An empty database gets the whole schema without a copy.
 * DATA_LOSS: a database of another program (tables without Sluice's application id).
 * FAILED_PRECONDITION (STATE_STORE_NEWER): its schema is newer. */
int store_migrate(struct store_db *db, const char *path, struct error *err);

/* Makes the same checks without a change. *out_version is the database's schema, from 0 to this
 * program's. */
int store_migrate_check(struct store_db *db, unsigned *out_version, struct error *err);
