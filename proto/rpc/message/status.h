/* status.h: converts struct error to the wire form and back. The form is the gRPC code and
 * message, and a google.rpc.Status in grpc-status-details-bin. That has ErrorInfo (reason,
 * domain "sluice"), BadRequest (field) and RetryInfo. The metadata of ErrorInfo may
 * have "tokens_sent" and "version". Only this file knows the form. Any thread. */
#pragma once

#include <stddef.h>

struct error;

/* Packs the details of an error. ErrorInfo is always there (default reason: the status's name).
 * BadRequest is there if the error has a field, RetryInfo if the error has a time. *out_bytes is
 * owned (free()); NULL if memory is exhausted. */
void rpc_status_pack(const struct error *status, void **out_bytes, size_t *out_n_bytes);

/* Fills *out_error from a peer's answer. Without valid details only code and message are filled.
 * A reason that equals the status counts as none. */
void rpc_status_unpack(int grpc_code, const char *message, size_t n_message, const void *details,
                       size_t n_details, struct error *out_error);
