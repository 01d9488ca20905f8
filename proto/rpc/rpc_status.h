/* rpc_status.h: struct error to the wire and back: gRPC code and message, and google.rpc.Status
 * with ErrorInfo (reason, domain "sluice"), BadRequest (field) and RetryInfo in
 * grpc-status-details-bin. The one place that knows this form. Any thread. */
#pragma once

#include <stddef.h>

struct error;

/* The details of an error; *out_bytes is owned (free()) and NULL where there are none to tell. */
void rpc_status_pack(const struct error *status, void **out_bytes, size_t *out_n_bytes);

/* Fills *out_error from what a peer sent. Details that are absent or malformed leave code and
 * message. */
void rpc_status_unpack(int grpc_code, const char *message, size_t n_message, const void *details,
                       size_t n_details, struct error *out_error);
