#include "manager/store/txn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/seeded_bug.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "manager/base/message.h"
#include "manager/store/transition.h"
#include "manager/store/txn_private.h"

enum { IDEMPOTENCY_ROWS = 10000, EVENT_PRUNE_EVERY = 100 };

int txn_begin(struct txn *txn, struct store_db *db, struct catalog *catalog, struct error *err)
{
    memset(txn, 0, sizeof(*txn));
    txn->db = db;
    txn->catalog = catalog;
    txn->now_unix_ns = clock_wall_ns();
    txn->last_event_seq_before = catalog->last_event_seq;
    txn->first_event_seq_before = catalog->first_event_seq;
    if (seeded_bug("I1_acknowledges_before_commit") && !sqlite3_get_autocommit(db->sqlite))
        return 0;
    sqlite3_stmt *begin = store_db_statement(db, STATEMENT_BEGIN, err);
    /* Prepares the end of the transaction before its begin, so that the end needs no memory. */
    if (!begin || !store_db_statement(db, STATEMENT_COMMIT, err) ||
        !store_db_statement(db, STATEMENT_ROLLBACK, err))
        return err->status;
    int rc = store_db_run(begin);
    return rc == SQLITE_DONE ? 0 : store_db_error(db, rc, err);
}

void txn_begin_in_memory(struct txn *txn, struct catalog *catalog)
{
    memset(txn, 0, sizeof(*txn));
    txn->catalog = catalog;
    txn->now_unix_ns = clock_wall_ns();
    txn->last_event_seq_before = catalog->last_event_seq;
    txn->first_event_seq_before = catalog->first_event_seq;
    txn->in_memory = true;
}

bool txn_is_in_memory(const struct txn *txn)
{
    return txn->in_memory;
}

void txn_free_changes(struct store_change *changes, size_t n_changes)
{
    for (size_t i = 0; i < n_changes; i++) {
        row_release(changes[i].before);
        row_release(changes[i].after);
    }
    free(changes);
}

void txn_revert(struct txn *txn)
{
    for (size_t i = txn->n_changes; i-- > 0;) {
        struct store_change *change = &txn->changes[i];
        if (change->table == TABLE_EVENT)
            continue;
        /* Putting a row back needs no memory: its place in the list still exists. */
        if (change->before)
            catalog_put(txn->catalog, change->before);
        else
            catalog_remove(txn->catalog, change->table, row_key(change->after));
    }
    txn->catalog->last_event_seq = txn->last_event_seq_before;
    txn->catalog->first_event_seq = txn->first_event_seq_before;
}

void txn_undo(struct txn *txn)
{
    txn_revert(txn);
    txn_free_changes(txn->changes, txn->n_changes);
    txn->changes = NULL;
    txn->n_changes = 0;
}

void txn_rollback(struct txn *txn)
{
    struct store_db *db = txn->db;
    if (!sqlite3_get_autocommit(db->sqlite) && !seeded_bug("I1_acknowledges_before_commit"))
        (void)store_db_run(db->fixed[STATEMENT_ROLLBACK]);
    txn_undo(txn);
}

int txn_commit(struct txn *txn, bool *out_unknown, struct error *err)
{
    *out_unknown = false;
    if (!txn->wrote) {
        txn_rollback(txn);
        return 0;
    }
    uint64_t generation = txn->catalog->generation + 1;
    if (store_db_set_counter(txn->db, "generation", generation, err) != 0) {
        txn_rollback(txn);
        return err->status;
    }
    if (seeded_bug("I1_acknowledges_before_commit")) {
        txn->catalog->generation = generation;
        return 0;
    }
    int sqlite_rc = store_db_run(txn->db->fixed[STATEMENT_COMMIT]);
    if (sqlite_rc == SQLITE_DONE) {
        txn->catalog->generation = generation;
        return 0;
    }
    int rc = store_db_error(txn->db, sqlite_rc, err);
    /* A write without room is cut short, and so is the commit. After any other failure the
     * commit may be complete, on the disk or in the kernel's memory alone. */
    bool full = err->reason == REASON_STATE_STORE_FULL;
    if ((sqlite_rc & 0xff) == SQLITE_IOERR && !(full && sqlite_rc == SQLITE_IOERR_WRITE)) {
        *out_unknown = true;
        return rc;
    }
    txn_rollback(txn);
    return rc;
}

const struct catalog *txn_catalog(const struct txn *txn)
{
    return txn->catalog;
}

int64_t txn_now_unix_ns(const struct txn *txn)
{
    return txn->now_unix_ns;
}

static int out_of_memory(struct txn *txn, struct error *err)
{
    struct store_db none = {.sqlite = NULL}; /* in memory */
    return store_db_error(txn->in_memory ? &none : txn->db, SQLITE_NOMEM, err);
}

static int run_statement(struct txn *txn, sqlite3_stmt *stmt, struct error *err)
{
    int rc = store_db_run(stmt);
    txn->wrote = true;
    return rc == SQLITE_DONE ? 0 : store_db_error(txn->db, rc, err);
}

/* Makes room to note one more change. note_change() then takes both references. */
static bool reserve_change(struct txn *txn)
{
    if (txn->n_changes < txn->capacity)
        return true;
    size_t capacity = txn->capacity ? txn->capacity * 2 : 8;
    struct store_change *changes = realloc(txn->changes, capacity * sizeof(*changes));
    if (!changes)
        return false;
    txn->changes = changes;
    txn->capacity = capacity;
    return true;
}

static void note_change(struct txn *txn, enum table table, struct row *before, struct row *after)
{
    txn->changes[txn->n_changes++] =
        (struct store_change){.table = table, .before = before, .after = after};
}

int txn_write_row(struct txn *txn, struct row *row, struct error *err)
{
    sqlite3_stmt *stmt = store_db_upsert(txn->db, row_table(row), err);
    int rc = stmt ? row_bind(row, stmt, 0, err) : err->status;
    return rc == 0 ? run_statement(txn, stmt, err) : rc;
}

int txn_put_extra(struct txn *txn, enum table table, ProtobufCMessage *message, int64_t extra,
                  struct error *err)
{
    struct row *row = row_create(table, message, extra);
    if (!row || !reserve_change(txn)) {
        row_release(row);
        return out_of_memory(txn, err);
    }
    struct row *before = catalog_get(txn->catalog, table, row_key(row));
    int rc = transition_check(before, row, err);
    if (rc == 0 && !txn->in_memory)
        rc = txn_write_row(txn, row, err);
    if (rc == 0) {
        if (before)
            row_retain(before);
        if (catalog_put(txn->catalog, row) == 0) {
            note_change(txn, table, before, row);
            return 0;
        }
        row_release(before);
        rc = out_of_memory(txn, err);
    }
    row_release(row);
    return rc;
}

int txn_put(struct txn *txn, enum table table, ProtobufCMessage *message, struct error *err)
{
    return txn_put_extra(txn, table, message, 0, err);
}

int txn_put_copy(struct txn *txn, enum table table, const void *message, struct error *err)
{
    ProtobufCMessage *copy = message_copy(message);
    return copy ? txn_put(txn, table, copy, err) : out_of_memory(txn, err);
}

int txn_delete(struct txn *txn, enum table table, const char *key, struct error *err)
{
    struct row *row = catalog_get(txn->catalog, table, key);
    if (!row || txn->in_memory)
        return 0; /* in memory nothing is deleted: the row would return with the next start */
    if (!reserve_change(txn))
        return out_of_memory(txn, err);
    sqlite3_stmt *stmt = store_db_remove(txn->db, table, err);
    int rc = stmt ? row_bind(row, stmt, 1, err) : err->status;
    if (rc == 0)
        rc = run_statement(txn, stmt, err);
    if (rc != 0)
        return rc;
    note_change(txn, table, row_retain(row), NULL);
    catalog_remove(txn->catalog, table, row_key(row));
    return 0;
}

static int run_with_number(struct txn *txn, enum store_statement which, int64_t number,
                           struct error *err)
{
    sqlite3_stmt *stmt = store_db_statement(txn->db, which, err);
    if (!stmt)
        return err->status;
    sqlite3_bind_int64(stmt, 1, number);
    return run_statement(txn, stmt, err);
}

static bool add_attribute(pb_event *message, const struct txn_attribute *attribute)
{
    typedef Sluice__Manager__V1__Event__AttributesEntry entry;
    entry *e = MESSAGE_NEW(entry, sluice__manager__v1__event__attributes_entry__descriptor);
    if (e && message_set(&e->key, attribute->key) && message_set(&e->value, attribute->value) &&
        message_append(&message->n_attributes, &message->attributes, e))
        return true;
    if (e)
        message_free(&e->base);
    return false;
}

static bool fill_event(pb_event *message, const struct txn_event *event)
{
    return message_set(&message->type, event->type) && message_set(&message->model, event->model) &&
           message_set(&message->version, event->version) &&
           message_set(&message->replica_id, event->replica_id) &&
           message_set(&message->device_group, event->device_group) &&
           message_set(&message->operation_id, event->operation_id) &&
           message_set(&message->message, event->message) &&
           message_set(&message->stage, event->stage) &&
           message_set(&message->device, event->device);
}

static bool fill_attributes(pb_event *message, const struct txn_event *event)
{
    const struct txn_attribute reason = {"reason", event->reason};
    if (event->reason && event->reason[0] && !add_attribute(message, &reason))
        return false;
    for (size_t i = 0; i < event->n_attributes; i++)
        if (event->attributes[i].value[0] && !add_attribute(message, &event->attributes[i]))
            return false;
    return true;
}

int txn_event(struct txn *txn, const struct txn_event *event, struct error *err)
{
    if (txn->in_memory)
        return 0; /* an event is written with the row later */
    pb_event *message = MESSAGE_NEW(pb_event, sluice__manager__v1__event__descriptor);
    if (!message || !fill_event(message, event) || !fill_attributes(message, event)) {
        if (message)
            message_free(&message->base);
        return out_of_memory(txn, err);
    }
    message->seq = txn->catalog->last_event_seq + (seeded_bug("I8_loses_an_event") ? 2 : 1);
    message->time_unix_ns = txn->now_unix_ns;
    int64_t seq = (int64_t)message->seq;
    struct row *row = row_create(TABLE_EVENT, &message->base, 0);
    if (!row || !reserve_change(txn)) {
        row_release(row);
        return out_of_memory(txn, err);
    }
    int rc = txn_write_row(txn, row, err);
    if (rc != 0) {
        row_release(row);
        return rc;
    }
    note_change(txn, TABLE_EVENT, NULL, row);
    txn->catalog->last_event_seq = (uint64_t)seq;
    if (!txn->catalog->first_event_seq)
        txn->catalog->first_event_seq = (uint64_t)seq;
    int64_t gone = seq - (int64_t)txn->max_events;
    if (seq % EVENT_PRUNE_EVERY != 0 || gone < (int64_t)txn->catalog->first_event_seq)
        return 0;
    txn->catalog->first_event_seq = (uint64_t)gone + 1;
    return run_with_number(txn, STATEMENT_FORGET_EVENTS, gone, err);
}

int txn_read_events(struct txn *txn, uint64_t from_seq, size_t max, struct row **out_rows,
                    size_t *out_n, struct error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct strbuf sql;
    size_t n = 0;
    strbuf_init(&sql, 0);
    table_sql_select(table_spec(TABLE_EVENT), &sql);
    strbuf_add_str(&sql, " WHERE seq >= ?1 ORDER BY seq LIMIT ?2");
    int rc = store_db_prepare(txn->db, strbuf_str(&sql), &stmt, err);
    strbuf_fini(&sql);
    if (rc != 0)
        return rc;
    sqlite3_bind_int64(stmt, 1, (int64_t)from_seq);
    sqlite3_bind_int64(stmt, 2, (int64_t)max);
    int sqlite_rc = SQLITE_DONE;
    while (n < max && (sqlite_rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        if ((rc = row_read(TABLE_EVENT, stmt, &out_rows[n], err)) != 0)
            break;
        n++;
    }
    if (rc == 0 && sqlite_rc != SQLITE_ROW && sqlite_rc != SQLITE_DONE)
        rc = store_db_error(txn->db, sqlite_rc, err);
    sqlite3_finalize(stmt);
    if (rc == 0)
        *out_n = n;
    while (rc != 0 && n > 0)
        row_release(out_rows[--n]);
    return rc;
}

int txn_next(struct txn *txn, const char *counter, uint64_t *out_value, struct error *err)
{
    uint64_t value = 0;
    if (store_db_counter(txn->db, counter, &value, err) != 0 ||
        store_db_set_counter(txn->db, counter, value + 1, err) != 0)
        return err->status;
    txn->wrote = true;
    *out_value = value + 1;
    return 0;
}

static int digest(struct txn *txn, const ProtobufCMessage *request,
                  uint8_t out_digest[SHA256_BYTES], struct error *err)
{
    struct sha256 *sha = NULL;
    size_t n_bytes = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes)
        return out_of_memory(txn, err);
    protobuf_c_message_pack(request, bytes);
    int rc = sha256_create(&sha, err);
    if (rc == 0) {
        sha256_update(sha, bytes, n_bytes);
        sha256_final(sha, out_digest);
    }
    free(bytes);
    return rc;
}

static int read_answer(struct txn *txn, sqlite3_stmt *stmt, const char *method,
                       const uint8_t *wanted, const ProtobufCMessageDescriptor *response_type,
                       ProtobufCMessage **out_response, struct error *err)
{
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_DONE)
        return 0;
    if (rc != SQLITE_ROW)
        return store_db_error(txn->db, rc, err);
    const char *stored_method = (const char *)sqlite3_column_text(stmt, 0);
    const void *stored = sqlite3_column_blob(stmt, 1);
    if (!stored_method || !stored || sqlite3_column_bytes(stmt, 1) != SHA256_BYTES ||
        strcmp(stored_method, method) != 0 || memcmp(stored, wanted, SHA256_BYTES) != 0) {
        error_field(err, "request_id", "was used before by another request");
        return error_reason(err, REASON_REQUEST_ID_REUSED);
    }
    const uint8_t *bytes = sqlite3_column_blob(stmt, 2);
    rc = message_unpack(response_type, "state store: a recorded answer", bytes,
                        (size_t)sqlite3_column_bytes(stmt, 2), out_response, err);
    txn->db->n_errors += rc != 0;
    return rc;
}

int txn_idempotency_find(struct txn *txn, const char *request_id, const char *method,
                         const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *response_type,
                         ProtobufCMessage **out_response, struct error *err)
{
    uint8_t wanted[SHA256_BYTES];
    *out_response = NULL;
    if (!*request_id)
        return 0;
    sqlite3_stmt *stmt = store_db_statement(txn->db, STATEMENT_FIND_ANSWER, err);
    if (!stmt || digest(txn, request, wanted, err) != 0)
        return err->status;
    sqlite3_bind_text(stmt, 1, request_id, -1, SQLITE_STATIC);
    int rc = read_answer(txn, stmt, method, wanted, response_type, out_response, err);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return rc;
}

int txn_idempotency_record(struct txn *txn, const char *request_id, const char *method,
                           const ProtobufCMessage *request, const ProtobufCMessage *response,
                           struct error *err)
{
    uint8_t sha[SHA256_BYTES];
    if (!*request_id || seeded_bug("I1_forgets_the_request"))
        return 0;
    size_t n_bytes = protobuf_c_message_get_packed_size(response);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes)
        return out_of_memory(txn, err);
    protobuf_c_message_pack(response, bytes);
    sqlite3_stmt *stmt = store_db_statement(txn->db, STATEMENT_RECORD_ANSWER, err);
    if (!stmt || digest(txn, request, sha, err) != 0) {
        free(bytes);
        return err->status;
    }
    sqlite3_bind_text(stmt, 1, request_id, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, method, -1, SQLITE_STATIC);
    sqlite3_bind_blob(stmt, 3, sha, sizeof(sha), SQLITE_STATIC);
    sqlite3_bind_blob64(stmt, 4, bytes, n_bytes, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 5, txn->now_unix_ns);
    int rc = run_statement(txn, stmt, err);
    free(bytes);
    if (rc != 0)
        return rc;
    return run_with_number(txn, STATEMENT_FORGET_ANSWERS, IDEMPOTENCY_ROWS, err);
}
