/* txn.h: one transaction of the state database, for a store_txn_fn: rows, events, counters, and
 * answers by request id. Store thread only, inside store_txn_fn (store.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "manager/store/catalog.h"
#include "manager/store/row.h"

struct error;
struct txn;

/* True in the second run of a store_submit_seen job, after the disk took no writes: rows change
 * in memory alone. Events and deletions are left out; request ids are neither found nor
 * recorded. The first run was undone. */
bool txn_is_in_memory(const struct txn *txn);

/* The catalog with this transaction's own writes. Its rows stay valid until the transaction's
 * end, also those that a later write replaces or deletes. */
const struct catalog *txn_catalog(const struct txn *txn);
/* Wall time of the transaction. */
int64_t txn_now_unix_ns(const struct txn *txn);

/* Inserts or replaces a row. Takes `message` in any case. */
int txn_put(struct txn *txn, enum table table, ProtobufCMessage *message, struct error *err);
int txn_put_extra(struct txn *txn, enum table table, ProtobufCMessage *message, int64_t extra,
                  struct error *err);
/* Like txn_put() with a deep copy of `message`. */
int txn_put_copy(struct txn *txn, enum table table, const void *message, struct error *err);
int txn_delete(struct txn *txn, enum table table, const char *key, struct error *err);

struct txn_attribute {
    const char *key, *value;
};

/* Contents of an event; NULL members are empty. */
struct txn_event {
    const char *type; /* "replica.ready" */
    const char *model, *version, *replica_id, *device_group, *operation_id;
    const char *message;
    const char *reason; /* UPPER_SNAKE, stored as the attribute "reason"; NULL or "": no reason */
    const char *stage;  /* NULL: no stage */
    const char *device;
    const struct txn_attribute *attributes; /* attributes with an empty value are left out */
    size_t n_attributes;
};
int txn_event(struct txn *txn, const struct txn_event *event, struct error *err);
/* Reads at most `max` events from `from_seq` on, in order; out_rows[0..*out_n) are owned. */
int txn_read_events(struct txn *txn, uint64_t from_seq, size_t max, struct row **out_rows,
                    size_t *out_n, struct error *err);

/* Next value (1, 2, 3, ...) of a counter in the database. Rolled back with the transaction. */
int txn_next(struct txn *txn, const char *counter, uint64_t *out_value, struct error *err);

/* Answers by request id. find: *out_response is the recorded answer to the same request (owned),
 * or NULL for a new id. INVALID_ARGUMENT, reason REQUEST_ID_REUSED, where another request used
 * the id. record: saves an answer; beyond 10,000 answers the oldest are deleted. An empty id is
 * never found or recorded. */
int txn_idempotency_find(struct txn *txn, const char *request_id, const char *method,
                         const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *response_type,
                         ProtobufCMessage **out_response, struct error *err);
int txn_idempotency_record(struct txn *txn, const char *request_id, const char *method,
                           const ProtobufCMessage *request, const ProtobufCMessage *response,
                           struct error *err);
