/* catalog.h: everything the state database holds, in memory, in key order. Two of them exist: the
 * store thread's, which a transaction reads and writes, and the loop's, which follows it one
 * committed transaction behind and answers every read. Each belongs to its one thread; rows are
 * shared. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/store/row.h"

struct catalog_list {
    struct row **rows; /* sorted by key; a reference each */
    size_t n_rows;
    size_t capacity;
    uint64_t n_changes; /* rows put and removed so far */
};

struct catalog {
    struct catalog_list lists[N_CATALOG_TABLES];
    uint64_t generation; /* of the whole store: grows with every commit */
    uint64_t last_event_seq;
    uint64_t first_event_seq; /* the oldest that is kept; 0: none is */
    uint64_t manager_epoch;   /* grows with every start that could be written */
    /* Numbers of what this start shows (operations' views, tables of routes) begin here: the epoch
     * in the upper half, below it the time, which tells starts apart that had the same epoch as the
     * disk was full. */
    uint64_t first_revision;
};

/* A zeroed catalog is a valid empty one. */
void catalog_fini(struct catalog *catalog);

/* Index of the first row whose key is not before `key`. */
size_t catalog_find(const struct catalog *catalog, enum table table, const char *key);
/* Row by index (NULL beyond the end) and by key (NULL: none). Borrowed until the next change. */
struct row *catalog_at(const struct catalog *catalog, enum table table, size_t i);
struct row *catalog_get(const struct catalog *catalog, enum table table, const char *key);
size_t catalog_count(const struct catalog *catalog, enum table table);

/* Inserts or replaces, taking a reference of its own. -1, catalog unchanged, where memory is
 * exhausted. */
int catalog_put(struct catalog *catalog, struct row *row);
void catalog_remove(struct catalog *catalog, enum table table, const char *key);

/* Typed look-ups; NULL: none. */
const pb_model *catalog_model(const struct catalog *catalog, const char *name);
const pb_version *catalog_version(const struct catalog *catalog, const char *model,
                                  const char *version);
const pb_deployment *catalog_deployment(const struct catalog *catalog, const char *model,
                                        const char *version, const char *group);
const pb_group *catalog_group(const struct catalog *catalog, const char *name);
const pb_replica *catalog_replica(const struct catalog *catalog, const char *id);
const pb_operation *catalog_operation(const struct catalog *catalog, const char *id);
const pb_device *catalog_device(const struct catalog *catalog, const char *name);

/* Iteration: the message at an index or NULL at the end. */
const pb_model *catalog_model_at(const struct catalog *catalog, size_t i);
const pb_version *catalog_version_at(const struct catalog *catalog, size_t i);
const pb_deployment *catalog_deployment_at(const struct catalog *catalog, size_t i);
const pb_group *catalog_group_at(const struct catalog *catalog, size_t i);
const pb_device *catalog_device_at(const struct catalog *catalog, size_t i);
const pb_replica *catalog_replica_at(const struct catalog *catalog, size_t i);
const pb_operation *catalog_operation_at(const struct catalog *catalog, size_t i);
const pb_hold *catalog_hold_at(const struct catalog *catalog, size_t i);
const pb_key *catalog_key_at(const struct catalog *catalog, size_t i);
/* The one of that name that is not revoked; NULL: none. */
const pb_key *catalog_key(const struct catalog *catalog, const char *name);

/* First version or deployment of a model; iterate while the name is the same. */
size_t catalog_first_version(const struct catalog *catalog, const char *model);
/* The version a request means: the named one, or with "" the one registered last. NULL: none. */
const pb_version *catalog_resolve_version(const struct catalog *catalog, const char *model,
                                          const char *version);
