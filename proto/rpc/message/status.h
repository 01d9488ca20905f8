/* status.h: struct error to the wire and back: gRPC code and message, and google.rpc.Status
 * with ErrorInfo (reason, domain "sluice"), BadRequest (field) and RetryInfo in
 * grpc-status-details-bin. The one place that knows this form. Any thread. */
#pragma once

#include <stddef.h>

struct error;

/* The details of an error: ErrorInfo always (the reason is the status's name where none is given),
 * BadRequest and RetryInfo where there is a field and a time. *out_bytes is owned (free()); NULL
 * where memory is exhausted. */
void rpc_status_pack(const struct error *status, void **out_bytes, size_t *out_n_bytes);

/* Fills *out_error from what a peer sent. Details that are absent or malformed leave code and
 * message; a reason that only repeats the status is none. */
void rpc_status_unpack(int grpc_code, const char *message, size_t n_message, const void *details,
                       size_t n_details, struct error *out_error);
