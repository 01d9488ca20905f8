#include "base/status.h"

#include <errno.h>

static const char *const names[] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

const char *status_name(int status)
{
    int code = status_to_grpc(status);
    return names[code];
}

int status_to_grpc(int status)
{
    if (status > 0 || status <= -N_NAMES)
        return -STATUS_UNKNOWN;
    return -status;
}

int status_from_grpc(int code)
{
    if (code < 0 || code >= N_NAMES)
        return STATUS_UNKNOWN;
    return -code;
}

int status_from_errno(int err_no)
{
    switch (err_no) {
    case 0:
        return STATUS_OK;
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
        return STATUS_NOT_FOUND;
    case EACCES:
    case EPERM:
        return STATUS_PERMISSION_DENIED;
    case ENOSPC:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EDQUOT:
    case EFBIG:
        return STATUS_RESOURCE_EXHAUSTED;
    case EEXIST:
        return STATUS_ALREADY_EXISTS;
    case EINVAL:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
        return STATUS_INVALID_ARGUMENT;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
        return STATUS_UNAVAILABLE;
    default:
        return STATUS_INTERNAL;
    }
}
