#include "manager/store/catalog.h"

#include <stdlib.h>
#include <string.h>

void catalog_fini(struct catalog *catalog)
{
    for (size_t t = 0; t < N_CATALOG_TABLES; t++) {
        struct catalog_list *list = &catalog->lists[t];
        for (size_t i = 0; i < list->n_rows; i++)
            row_release(list->rows[i]);
        free(list->rows);
    }
    memset(catalog, 0, sizeof(*catalog));
}

size_t catalog_find(const struct catalog *catalog, enum table table, const char *key)
{
    const struct catalog_list *list = &catalog->lists[table];
    size_t low = 0, high = list->n_rows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table_compare(table, row_key(list->rows[middle]), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct row *catalog_at(const struct catalog *catalog, enum table table, size_t i)
{
    return i < catalog->lists[table].n_rows ? catalog->lists[table].rows[i] : NULL;
}

struct row *catalog_get(const struct catalog *catalog, enum table table, const char *key)
{
    struct row *row = catalog_at(catalog, table, catalog_find(catalog, table, key));
    return row && strcmp(row_key(row), key) == 0 ? row : NULL;
}

size_t catalog_count(const struct catalog *catalog, enum table table)
{
    return catalog->lists[table].n_rows;
}

int catalog_put(struct catalog *catalog, struct row *row)
{
    struct catalog_list *list = &catalog->lists[row_table(row)];
    size_t i = catalog_find(catalog, row_table(row), row_key(row));
    if (i < list->n_rows && strcmp(row_key(list->rows[i]), row_key(row)) == 0) {
        row_retain(row);
        row_release(list->rows[i]);
        list->rows[i] = row;
        list->n_changes++;
        return 0;
    }
    if (list->n_rows == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 16;
        struct row **rows = realloc(list->rows, capacity * sizeof(struct row *));
        if (!rows)
            return -1;
        list->rows = rows;
        list->capacity = capacity;
    }
    memmove(&list->rows[i + 1], &list->rows[i], (list->n_rows - i) * sizeof(struct row *));
    list->rows[i] = row_retain(row);
    list->n_rows++;
    list->n_changes++;
    return 0;
}

void catalog_remove(struct catalog *catalog, enum table table, const char *key)
{
    struct catalog_list *list = &catalog->lists[table];
    size_t i = catalog_find(catalog, table, key);
    if (i >= list->n_rows || strcmp(row_key(list->rows[i]), key) != 0)
        return;
    list->n_changes++;
    row_release(list->rows[i]);
    memmove(&list->rows[i], &list->rows[i + 1], (list->n_rows - i - 1) * sizeof(struct row *));
    list->n_rows--;
}

static const void *get_message(const struct catalog *catalog, enum table table, const char *a,
                               const char *b, const char *c)
{
    char key[TABLE_KEY_BYTES];
    table_key(key, a, b, c);
    struct row *row = catalog_get(catalog, table, key);
    return row ? row_message(row) : NULL;
}

const pb_model *catalog_model(const struct catalog *catalog, const char *name)
{
    return get_message(catalog, TABLE_MODEL, name, NULL, NULL);
}

const pb_version *catalog_version(const struct catalog *catalog, const char *model,
                                  const char *version)
{
    return get_message(catalog, TABLE_MODEL_VERSION, model, version, NULL);
}

const pb_deployment *catalog_deployment(const struct catalog *catalog, const char *model,
                                        const char *version, const char *group)
{
    return get_message(catalog, TABLE_DEPLOYMENT, model, version, group);
}

const pb_group *catalog_group(const struct catalog *catalog, const char *name)
{
    return get_message(catalog, TABLE_DEVICE_GROUP, name, NULL, NULL);
}

const pb_replica *catalog_replica(const struct catalog *catalog, const char *id)
{
    return get_message(catalog, TABLE_REPLICA, id, NULL, NULL);
}

const pb_operation *catalog_operation(const struct catalog *catalog, const char *id)
{
    return get_message(catalog, TABLE_OPERATION, id, NULL, NULL);
}

static const void *message_at(const struct catalog *catalog, enum table table, size_t i)
{
    struct row *row = catalog_at(catalog, table, i);
    return row ? row_message(row) : NULL;
}

const pb_model *catalog_model_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_MODEL, i);
}

const pb_version *catalog_version_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_MODEL_VERSION, i);
}

uint32_t catalog_n_ranks(const pb_deployment *deployment)
{
    return deployment ? deployment->tp * (deployment->pp ? deployment->pp : 1) : 1;
}

const pb_deployment *catalog_deployment_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_DEPLOYMENT, i);
}

const pb_group *catalog_group_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_DEVICE_GROUP, i);
}

const pb_device *catalog_device_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_DEVICE, i);
}

const pb_replica *catalog_replica_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_REPLICA, i);
}

const pb_operation *catalog_operation_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_OPERATION, i);
}

const pb_device *catalog_device(const struct catalog *catalog, const char *name)
{
    return get_message(catalog, TABLE_DEVICE, name, NULL, NULL);
}

const pb_hold *catalog_hold_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_DEVICE_HOLD, i);
}

const pb_key *catalog_key_at(const struct catalog *catalog, size_t i)
{
    return message_at(catalog, TABLE_API_KEY, i);
}

const pb_key *catalog_key(const struct catalog *catalog, const char *name)
{
    const pb_key *key;
    for (size_t i = 0; (key = catalog_key_at(catalog, i)); i++)
        if (!key->revoked_unix_ns && strcmp(key->name, name) == 0)
            return key;
    return NULL;
}

size_t catalog_first_version(const struct catalog *catalog, const char *model)
{
    return catalog_find(catalog, TABLE_MODEL_VERSION, model);
}

const pb_version *catalog_resolve_version(const struct catalog *catalog, const char *model,
                                          const char *version)
{
    const pb_version *last = NULL;
    if (*version)
        return catalog_version(catalog, model, version);
    for (size_t i = catalog_first_version(catalog, model);; i++) {
        const pb_version *row = catalog_version_at(catalog, i);
        if (!row || strcmp(row->model, model) != 0)
            return last;
        if (!last || row->sequence > last->sequence)
            last = row;
    }
}
