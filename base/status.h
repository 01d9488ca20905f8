/* status.h: the result codes of all functions. A function returns 0 or a negative status. The
 * magnitudes are gRPC's (google.rpc.Code), so only the sign changes on the wire. */
#pragma once

enum status {
    STATUS_OK = 0,
    STATUS_CANCELLED = -1,
    STATUS_UNKNOWN = -2,
    STATUS_INVALID_ARGUMENT = -3,
    STATUS_DEADLINE_EXCEEDED = -4,
    STATUS_NOT_FOUND = -5,
    STATUS_ALREADY_EXISTS = -6,
    STATUS_PERMISSION_DENIED = -7,
    STATUS_RESOURCE_EXHAUSTED = -8,
    STATUS_FAILED_PRECONDITION = -9,
    STATUS_ABORTED = -10,
    STATUS_OUT_OF_RANGE = -11,
    STATUS_UNIMPLEMENTED = -12,
    STATUS_INTERNAL = -13,
    STATUS_UNAVAILABLE = -14,
    STATUS_DATA_LOSS = -15,
    STATUS_UNAUTHENTICATED = -16,
};

/* "INVALID_ARGUMENT" for STATUS_INVALID_ARGUMENT; "UNKNOWN" for a number outside the set. */
const char *status_name(int status);

/* gRPC's positive code for a status, and back. Numbers outside the set become UNKNOWN. */
int status_to_grpc(int status);
int status_from_grpc(int code);

/* The status that fits an errno value: ENOENT → NOT_FOUND, EACCES → PERMISSION_DENIED,
 * ENOSPC/ENOMEM/EMFILE → RESOURCE_EXHAUSTED, EEXIST → ALREADY_EXISTS, EINVAL → INVALID_ARGUMENT,
 * ECONNREFUSED/EPIPE → UNAVAILABLE; everything else INTERNAL. */
int status_from_errno(int err_no);
