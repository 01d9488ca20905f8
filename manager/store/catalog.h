/* catalog.h: the whole state database in memory, in key order. There are two catalogs. A
 * transaction on the store thread reads and writes the first. The loop's catalog follows one
 * committed transaction behind and answers all reads. Each belongs to one thread; the rows are
 * shared. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/store/row.h"

struct catalog_list {
    struct row **rows; /* sorted by key; owns a reference to each row */
    size_t n_rows;
    size_t capacity;
    uint64_t n_changes; /* number of rows put and removed so far */
};

struct catalog {
    struct catalog_list lists[N_CATALOG_TABLES];
    uint64_t generation; /* store-wide: grows with every commit */
    uint64_t last_event_seq;
    uint64_t first_event_seq; /* the oldest event that is kept; 0: no event is kept */
    uint64_t manager_epoch;   /* grows with every start that could be written */
    /* First number for views of this start (operations, route tables). The upper half is the
     * epoch. The lower half holds the time, which tells apart starts of equal epoch while the
     * disk is full. */
    uint64_t first_revision;
};

/* A zeroed catalog is valid and empty. */
void catalog_fini(struct catalog *catalog);

/* Index of the first row whose key is not before `key`. */
size_t catalog_find(const struct catalog *catalog, enum table table, const char *key);
/* Row by index (NULL beyond the end) and by key (NULL: not found). Borrowed until the next
 * change. */
struct row *catalog_at(const struct catalog *catalog, enum table table, size_t i);
struct row *catalog_get(const struct catalog *catalog, enum table table, const char *key);
size_t catalog_count(const struct catalog *catalog, enum table table);

/* Inserts or replaces the row and takes a new reference to it. -1 where memory is exhausted; the
 * catalog is then unchanged. */
int catalog_put(struct catalog *catalog, struct row *row);
void catalog_remove(struct catalog *catalog, enum table table, const char *key);

/* Typed lookups; NULL: not found. */
const pb_model *catalog_model(const struct catalog *catalog, const char *name);
const pb_version *catalog_version(const struct catalog *catalog, const char *model,
                                  const char *version);
const pb_deployment *catalog_deployment(const struct catalog *catalog, const char *model,
                                        const char *version, const char *group);
const pb_group *catalog_group(const struct catalog *catalog, const char *name);
const pb_replica *catalog_replica(const struct catalog *catalog, const char *id);
const pb_operation *catalog_operation(const struct catalog *catalog, const char *id);
const pb_device *catalog_device(const struct catalog *catalog, const char *name);

/* Iteration: the message at an index, or NULL at the end. */
const pb_model *catalog_model_at(const struct catalog *catalog, size_t i);
const pb_version *catalog_version_at(const struct catalog *catalog, size_t i);
/* Ranks of a replica; 1 without a deployment. */
uint32_t catalog_n_ranks(const pb_deployment *deployment);
const pb_deployment *catalog_deployment_at(const struct catalog *catalog, size_t i);
const pb_group *catalog_group_at(const struct catalog *catalog, size_t i);
const pb_device *catalog_device_at(const struct catalog *catalog, size_t i);
const pb_replica *catalog_replica_at(const struct catalog *catalog, size_t i);
const pb_operation *catalog_operation_at(const struct catalog *catalog, size_t i);
const pb_hold *catalog_hold_at(const struct catalog *catalog, size_t i);
const pb_key *catalog_key_at(const struct catalog *catalog, size_t i);
/* Loops over the rows of a table in key order: CATALOG_EACH(replica, row, catalog) declares `row`
 * as a const pb_replica *. The body may replace rows, but must not add or delete any. */
/* NOLINTBEGIN(bugprone-macro-parentheses): parts of names */
#define CATALOG_EACH(kind, row, catalog)                                                           \
    for (size_t i_##row = 0; i_##row != SIZE_MAX; i_##row = SIZE_MAX)                              \
        for (const pb_##kind *row; (row = catalog_##kind##_at(catalog, i_##row)); i_##row++)
/* NOLINTEND(bugprone-macro-parentheses) */

/* The key of that name that is not revoked; NULL: not found. */
const pb_key *catalog_key(const struct catalog *catalog, const char *name);

/* First version of a model; iterate while the name is the same. */
size_t catalog_first_version(const struct catalog *catalog, const char *model);
/* The version of a request: the named version, or for "" the latest registered one. NULL: not
 * found. */
const pb_version *catalog_resolve_version(const struct catalog *catalog, const char *model,
                                          const char *version);
