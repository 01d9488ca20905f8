/* launch_record.h: the launch record of a worker (sluice.worker.v1.Launch) in a sealed memfd. The
 * manager seals the record, and the worker that inherits the memfd reads it. No state: any
 * thread. */
#pragma once

#include "sluice/worker/v1/worker.pb-c.h"

struct error;

typedef Sluice__Worker__V1__Launch launch_record;

/* The largest record: a chat template of 1 MiB, paths and names. */
enum { LAUNCH_RECORD_MAX_BYTES = 4 << 20 };

/* Writes the record to a memfd and seals it against every change. *out_fd is owned, closed on
 * exec, and at least `min_fd`. RESOURCE_EXHAUSTED if memory is exhausted. INVALID_ARGUMENT if the
 * record is empty or exceeds LAUNCH_RECORD_MAX_BYTES. */
int launch_record_seal(const launch_record *record, int min_fd, int *out_fd, struct error *err);

/* Reads the record in `fd`, which stays open. *out_record is owned (launch_record_free).
 * INVALID_ARGUMENT with the fault in err->field: "descriptor" (not open), "memfd", "seals", "size",
 * or a field of the record. Reason MESSAGE_MALFORMED if the bytes are no message. Unknown fields
 * are kept. */
int launch_record_read(int fd, launch_record **out_record, struct error *err);

/* Returns a deep copy (launch_record_free), or NULL if memory is exhausted. */
launch_record *launch_record_copy(const launch_record *record);
void launch_record_free(launch_record *record); /* NULL is accepted */
