#include "manager/store/schema.h"

/* Column names are field names of the messages (table.c binds them); `detail` is the packed
 * rest. */
static const char *const migrations[] = {
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;"

    "CREATE TABLE model (name TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),"
    " generation INTEGER NOT NULL, created_unix_ns INTEGER NOT NULL, detail BLOB NOT NULL) STRICT;"

    "CREATE TABLE model_version (model TEXT NOT NULL REFERENCES model (name),"
    " version TEXT NOT NULL CHECK (length(version) BETWEEN 1 AND 32), path TEXT NOT NULL,"
    " generation INTEGER NOT NULL, created_unix_ns INTEGER NOT NULL, size_bytes INTEGER NOT NULL,"
    " sequence INTEGER NOT NULL UNIQUE, detail BLOB NOT NULL,"
    " PRIMARY KEY (model, version)) STRICT;"

    "CREATE TABLE device (name TEXT PRIMARY KEY, kind INTEGER NOT NULL, description TEXT NOT NULL,"
    " memory_total_bytes INTEGER NOT NULL, unusable_reason TEXT NOT NULL,"
    " detail BLOB NOT NULL) STRICT;"

    "CREATE TABLE device_group (name TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),"
    " generation INTEGER NOT NULL, created_unix_ns INTEGER NOT NULL, built_in INTEGER NOT NULL,"
    " detail BLOB NOT NULL) STRICT;"

    "CREATE TABLE deployment (model TEXT NOT NULL, version TEXT NOT NULL,"
    " device_group TEXT NOT NULL REFERENCES device_group (name),"
    " n_replicas INTEGER NOT NULL CHECK (n_replicas > 0), tp INTEGER NOT NULL, pp INTEGER NOT NULL,"
    " parked INTEGER NOT NULL, generation INTEGER NOT NULL, detail BLOB NOT NULL,"
    " PRIMARY KEY (model, version, device_group),"
    " FOREIGN KEY (model, version) REFERENCES model_version (model, version)) STRICT;"

    "CREATE TABLE replica (id TEXT PRIMARY KEY, model TEXT NOT NULL, version TEXT NOT NULL,"
    " device_group TEXT NOT NULL, state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 8),"
    " reason TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL,"
    " epoch INTEGER NOT NULL, socket TEXT NOT NULL, numerics_id TEXT NOT NULL,"
    " n_restarts INTEGER NOT NULL, next_start_unix_ns INTEGER NOT NULL,"
    " started_unix_ns INTEGER NOT NULL, ready_unix_ns INTEGER NOT NULL, adopted INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, detail BLOB NOT NULL,"
    " FOREIGN KEY (model, version) REFERENCES model_version (model, version)) STRICT;"

    "CREATE TABLE traffic (model TEXT PRIMARY KEY REFERENCES model (name),"
    " sticky INTEGER NOT NULL, generation INTEGER NOT NULL, detail BLOB NOT NULL) STRICT;"

    "CREATE TABLE operation (id TEXT PRIMARY KEY, kind INTEGER NOT NULL,"
    " state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5), stage TEXT NOT NULL,"
    " request_id TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,"
    " device_group TEXT NOT NULL, created_unix_ns INTEGER NOT NULL,"
    " updated_unix_ns INTEGER NOT NULL, ended_unix_ns INTEGER NOT NULL,"
    " grace_ms INTEGER NOT NULL, detail BLOB NOT NULL) STRICT;"

    "CREATE TABLE event (seq INTEGER PRIMARY KEY, time_unix_ns INTEGER NOT NULL,"
    " type TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL, replica_id TEXT NOT NULL,"
    " device_group TEXT NOT NULL, operation_id TEXT NOT NULL, message TEXT NOT NULL,"
    " detail BLOB NOT NULL) STRICT;"

    "CREATE TABLE api_key (hash BLOB PRIMARY KEY CHECK (length(hash) = 32), name TEXT NOT NULL,"
    " role TEXT NOT NULL, created_unix_ns INTEGER NOT NULL) STRICT;"

    "CREATE TABLE idempotency (serial INTEGER PRIMARY KEY, request_id TEXT NOT NULL UNIQUE,"
    " method TEXT NOT NULL, request_sha256 BLOB NOT NULL CHECK (length(request_sha256) = 32),"
    " response BLOB NOT NULL, created_unix_ns INTEGER NOT NULL) STRICT;",

    "CREATE TABLE device_hold (key TEXT PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 96),"
    " device TEXT NOT NULL, state INTEGER NOT NULL CHECK (state BETWEEN 2 AND 3),"
    " reason TEXT NOT NULL, since_unix_ns INTEGER NOT NULL, detail BLOB NOT NULL) STRICT;",

    /* The earlier table of this name was never written. */
    "DROP TABLE api_key;"
    "CREATE TABLE api_key (id TEXT PRIMARY KEY,"
    " name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 64),"
    " role INTEGER NOT NULL CHECK (role BETWEEN 1 AND 3),"
    " sha256 TEXT NOT NULL UNIQUE CHECK (length(sha256) = 64), created_unix_ns INTEGER NOT NULL,"
    " expires_unix_ns INTEGER NOT NULL, revoked_unix_ns INTEGER NOT NULL,"
    " created_by TEXT NOT NULL, detail BLOB NOT NULL) STRICT;"
    "CREATE UNIQUE INDEX api_key_name ON api_key (name) WHERE revoked_unix_ns = 0;",
};

size_t schema_n_migrations(void)
{
    return sizeof(migrations) / sizeof(migrations[0]);
}

const char *schema_migration(size_t i)
{
    return migrations[i];
}
