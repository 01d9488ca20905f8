#include "manager/store/table.h"

#include <string.h>

#include "base/strbuf.h"
#include "manager/base/pb.h"

static const struct table_spec specs[N_TABLES] = {
    [TABLE_MODEL] = {.name = "model",
                     .descriptor = &sluice__manager__v1__model__descriptor,
                     .n_key = 1,
                     .columns = {"name", "generation", "created_unix_ns"}},
    [TABLE_MODEL_VERSION] = {.name = "model_version",
                             .descriptor = &sluice__manager__v1__model_version__descriptor,
                             .n_key = 2,
                             .columns = {"model", "version", "path", "generation",
                                         "created_unix_ns", "size_bytes", "sequence"}},
    [TABLE_DEVICE] = {.name = "device",
                      .descriptor = &sluice__v1__device__descriptor,
                      .n_key = 1,
                      .columns = {"name", "kind", "description", "memory_total_bytes",
                                  "unusable_reason"}},
    [TABLE_DEVICE_GROUP] = {.name = "device_group",
                            .descriptor = &sluice__manager__v1__device_group__descriptor,
                            .n_key = 1,
                            .columns = {"name", "generation", "created_unix_ns", "built_in"}},
    [TABLE_DEPLOYMENT] = {.name = "deployment",
                          .descriptor = &sluice__manager__v1__deployment__descriptor,
                          .n_key = 3,
                          .columns = {"model", "version", "device_group", "n_replicas", "tp", "pp",
                                      "parked", "generation"}},
    [TABLE_REPLICA] = {.name = "replica",
                       .descriptor = &sluice__manager__v1__replica__descriptor,
                       .n_key = 1,
                       .columns = {"id", "model", "version", "device_group", "state", "reason",
                                   "pid", "start_ticks", "epoch", "socket", "numerics_id",
                                   "n_restarts", "next_start_unix_ns", "started_unix_ns",
                                   "ready_unix_ns", "adopted", "generation"},
                       .numbered = 1},
    [TABLE_TRAFFIC] = {.name = "traffic",
                       .descriptor = &sluice__manager__v1__traffic__descriptor,
                       .n_key = 1,
                       .columns = {"model", "sticky", "generation"}},
    [TABLE_OPERATION] = {.name = "operation",
                         .descriptor = &sluice__manager__v1__operation__descriptor,
                         .n_key = 1,
                         .columns = {"id", "kind", "state", "stage", "request_id", "model",
                                     "version", "device_group", "created_unix_ns",
                                     "updated_unix_ns", "ended_unix_ns"},
                         .extra = "grace_ms",
                         .numbered = 1},
    [TABLE_DEVICE_HOLD] = {.name = "device_hold",
                           .descriptor = &sluice__manager__v1__device_hold__descriptor,
                           .n_key = 1,
                           .columns = {"key", "device", "state", "reason", "since_unix_ns"}},
    [TABLE_API_KEY] = {.name = "api_key",
                       .descriptor = &sluice__manager__v1__api_key__descriptor,
                       .n_key = 1,
                       .columns = {"id", "name", "role", "sha256", "created_unix_ns",
                                   "expires_unix_ns", "revoked_unix_ns", "created_by"},
                       .numbered = 1},
    [TABLE_EVENT] = {.name = "event",
                     .descriptor = &sluice__manager__v1__event__descriptor,
                     .n_key = 1,
                     .columns = {"seq", "time_unix_ns", "type", "model", "version", "replica_id",
                                 "device_group", "operation_id", "message"}},
};

const struct table_spec *table_spec(enum table table)
{
    return &specs[table];
}

size_t table_n_columns(const struct table_spec *spec)
{
    size_t n = 0;
    while (n < TABLE_MAX_COLUMNS && spec->columns[n])
        n++;
    return n;
}

void table_key(char out_key[TABLE_KEY_BYTES], const char *a, const char *b, const char *c)
{
    /* Written by hand for speed: every lookup of a deployment builds a key, many times per pass
     * of the supervisor. */
    const char *parts[] = {a, b, b ? c : NULL};
    size_t n = 0;
    for (size_t i = 0; i < 3 && parts[i]; i++) {
        if (i && n + 1 < TABLE_KEY_BYTES)
            out_key[n++] = ' ';
        for (const char *text = parts[i]; *text && n + 1 < TABLE_KEY_BYTES; text++)
            out_key[n++] = *text;
    }
    out_key[n] = '\0';
}

int table_compare(enum table table, const char *a, const char *b)
{
    if (specs[table].numbered) {
        size_t n_a = strlen(a), n_b = strlen(b);
        if (n_a != n_b)
            return n_a < n_b ? -1 : 1;
    }
    return strcmp(a, b);
}

/* Appends `between`, except before the first, and the quoted name. */
static void add_quoted(struct strbuf *out, size_t i, const char *between, const char *name)
{
    strbuf_add_str(out, i ? between : "");
    strbuf_add_char(out, '"');
    strbuf_add_str(out, name);
    strbuf_add_char(out, '"');
}

static void add_columns(const struct table_spec *spec, struct strbuf *out)
{
    size_t n = table_n_columns(spec);
    for (size_t i = 0; i < n; i++)
        add_quoted(out, i, ", ", spec->columns[i]);
    if (spec->extra)
        add_quoted(out, 1, ", ", spec->extra);
    strbuf_add_str(out, ", \"detail\"");
}

static void add_excluded(struct strbuf *out, const char *name)
{
    add_quoted(out, 0, "", name);
    strbuf_add_str(out, " = excluded.");
    add_quoted(out, 0, "", name);
}

void table_sql_upsert(const struct table_spec *spec, struct strbuf *out)
{
    size_t n = table_n_columns(spec), n_all = n + (spec->extra ? 2 : 1);
    strbuf_add_str(out, "INSERT INTO ");
    add_quoted(out, 0, "", spec->name);
    strbuf_add_str(out, " (");
    add_columns(spec, out);
    strbuf_add_str(out, ") VALUES (");
    for (size_t i = 0; i < n_all; i++)
        strbuf_add_str(out, i ? ", ?" : "?"); /* numbered from 1 in this order */
    strbuf_add_str(out, ") ON CONFLICT (");
    for (size_t i = 0; i < spec->n_key; i++)
        add_quoted(out, i, ", ", spec->columns[i]);
    strbuf_add_str(out, ") DO UPDATE SET ");
    for (size_t i = spec->n_key; i < n; i++) {
        add_excluded(out, spec->columns[i]);
        strbuf_add_str(out, ", ");
    }
    if (spec->extra) {
        add_excluded(out, spec->extra);
        strbuf_add_str(out, ", ");
    }
    add_excluded(out, "detail");
}

void table_sql_delete(const struct table_spec *spec, struct strbuf *out)
{
    strbuf_add_str(out, "DELETE FROM ");
    add_quoted(out, 0, "", spec->name);
    strbuf_add_str(out, " WHERE ");
    for (size_t i = 0; i < spec->n_key; i++) {
        add_quoted(out, i, " AND ", spec->columns[i]);
        strbuf_add_str(out, " = ?");
    }
}

void table_sql_select(const struct table_spec *spec, struct strbuf *out)
{
    strbuf_add_str(out, "SELECT ");
    add_columns(spec, out);
    strbuf_add_str(out, " FROM ");
    add_quoted(out, 0, "", spec->name);
}
