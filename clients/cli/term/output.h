/* output.h: prints tables, JSON and human units to stdout. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/format.h"
#include "sluice/manager/v1/types.pb-c.h"

struct error;

enum { OUTPUT_TABLE_MAX_COLUMNS = 16, OUTPUT_STAGE_BYTES = 64 };

/* A table of text cells, aligned when printed. Cells are copied. */
struct output_table {
    size_t n_columns, n_rows, capacity;
    uint32_t optional; /* bits of columns that are left out while all their cells are empty */
    char **cells;
};

void output_table_init(struct output_table *table, size_t n_columns, const char *const *headers);
void output_table_add(struct output_table *table, const char *const *cells);
void output_table_print(const struct output_table *table);
void output_table_fini(struct output_table *table);

/* Formats the time since unix_ns: "1.2 s", "3 min"; "-" if unix_ns is 0. Returns out. */
const char *output_age(int64_t unix_ns, char out[32]);

/* Prints the message as JSON with the .proto's field names, on one line. 64-bit numbers are
 * numbers, bytes base64, enums names. Absent optional fields and inner empty lists are left out. */
void output_json(const ProtobufCMessage *message);
/* Prints {"error":{"code":"NOT_FOUND","reason":"MODEL_NOT_FOUND","field":"","message":"..."}} and a
 * newline to stderr. */
void output_json_error(const struct error *err);
/* Prints the fields that are set: "temperature 0.6, top_k 20". */
void output_sampling(const Sluice__V1__DefaultSampling *sampling);
/* Flushes stdout. Fails, with `what` as object, if the output could not be written. Reason
 * STDOUT_CLOSED: the reader of the pipe is gone. */
int output_flush(const char *what, struct error *err);
/* Name of an enum value in lower case, without the common prefix: REPLICA_STATE_READY → "ready". */
const char *output_enum(const ProtobufCEnumDescriptor *descriptor, int value, char out[32]);

/* Share of a replica's KV pool that requests and cached prefixes hold, 0 to 1. Negative if the
 * replica has not reported a pool. */
double output_kv_used(const Sluice__Manager__V1__Replica *replica);
/* Formats the share: "37 %", or "-". Returns out. */
const char *output_kv_text(const Sluice__Manager__V1__Replica *replica, char out[16]);
/* Formats used and all slots of recurrent states: "3/16"; empty if the model has none. Returns
 * out. */
const char *output_states_text(const Sluice__Manager__V1__Replica *replica, char out[24]);
/* Formats the snapshots of recurrent states, and how many made room for others: "6 (12 evicted)".
 * Empty if the model has no such states. Returns out. */
const char *output_snapshots_text(const Sluice__Manager__V1__Replica *replica, char out[48]);
/* Formats the stage of a rank: ", stage 1, layers 12-23"; empty with a single stage. Returns out.
 */
const char *output_layers(const Sluice__V1__Plan *plan, const Sluice__V1__DevicePlan *device,
                          char out[OUTPUT_STAGE_BYTES]);
/* Prints the predicted speed of a plan as a line; nothing without a prediction. */
void output_prediction(const Sluice__V1__Plan *plan);
/* Formats the number of stages: ", pp 2"; empty with a single stage. Returns out. */
const char *output_stages(const Sluice__V1__Plan *plan, char out[OUTPUT_STAGE_BYTES]);
/* Formats state and reason: "ready", "failed CRASH_LOOP". Returns out. */
const char *output_replica_state(const Sluice__Manager__V1__Replica *replica, char out[80]);
