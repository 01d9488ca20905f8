/* error.h: the cause of a failure. The function that knows the cause fills the struct once; callers
 * pass it on unchanged. Plain data without ownership; each thread has its own struct. Texts are for
 * people: they name the field or byte offset, the value and the limit. Texts never carry pointers,
 * internal names or paths outside the model root. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "base/status.h"

enum {
    ERROR_MESSAGE_BYTES = 512,
    ERROR_FIELD_BYTES = 96,
    ERROR_REASON_BYTES = 40,
    ERROR_VERSION_BYTES = 64
};

struct error {
    int status;                    /* enum status; STATUS_OK when nothing failed */
    uint32_t retry_after_ms;       /* > 0: google.rpc.RetryInfo */
    char field[ERROR_FIELD_BYTES]; /* request field at fault ("sampling.top_p"), or empty:
                                      google.rpc.BadRequest */
    enum reason reason;            /* google.rpc.ErrorInfo; read the name by error_reason_name() */
    char reason_text[ERROR_REASON_BYTES]; /* the peer's reason while `reason` is REASON_UNKNOWN */
    char version[ERROR_VERSION_BYTES]; /* the model version that is in the way, or empty: ErrorInfo
                                          metadata "version" */
    bool has_tokens_sent; /* the client has already received n_tokens_sent tokens: ErrorInfo
                             metadata "tokens_sent" */
    uint64_t n_tokens_sent;
    char message[ERROR_MESSAGE_BYTES]; /* UTF-8, NUL-terminated; a long text is cut between code
                                          points */
};

/* Fills *err and returns `status`, so callers write `return error_set(err, STATUS_X, "...", ...)`.
 */
int error_set(struct error *err, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Does the same for a bad request field: status INVALID_ARGUMENT, message "<field>: <text>". */
int error_field(struct error *err, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Does the same when memory is exhausted: RESOURCE_EXHAUSTED, "out of memory". Inline, so that
 * clang's analyzer sees that the result is never 0. */
static inline int error_no_memory(struct error *err)
{
    error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    return STATUS_RESOURCE_EXHAUSTED;
}

/* Adds the reason to an error already set; returns err->status. */
int error_reason(struct error *err, enum reason reason);
/* Does the same with a reason's name from the wire or the database. An unknown name is kept, so
 * that it passes on unchanged. NULL or "": no reason. */
int error_reason_parse(struct error *err, const char *name);
/* Does the same with the reason of another error. */
int error_reason_of(struct error *err, const struct error *other);
/* The reason's name, "QUEUE_FULL"; "" without a reason. Valid while *err is unchanged. */
const char *error_reason_name(const struct error *err);

/* Adds the model version that is in the way; returns err->status. */
int error_version(struct error *err, const char *version);

/* Adds the number of tokens that the client has received; returns err->status. */
int error_tokens_sent(struct error *err, uint64_t n_tokens);

/* Fills *err from an errno value: "<text>: No such file or directory". Returns the status of
 * status_from_errno. */
int error_errno(struct error *err, int err_no, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "<text>: " before the present message. Returns err->status. */
int error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

void error_clear(struct error *err);

/* clang's analyzer reads one source file at a time and does not see error.c. These macros state
 * what error.c guarantees: the returned status is negative and equals err->status. So the analyzer
 * follows no path on which a failure returns success. */
#if defined(__clang_analyzer__) && !defined(ERROR_BODIES)
static inline int error_is_set(const struct error *err, int status)
{
    if (status >= 0 || err->status != status)
        __builtin_unreachable();
    return status;
}
#define error_set(err, ...)          error_is_set(err, error_set(err, __VA_ARGS__))
#define error_field(err, ...)        error_is_set(err, error_field(err, __VA_ARGS__))
#define error_reason(err, ...)       error_is_set(err, error_reason(err, __VA_ARGS__))
#define error_reason_parse(err, ...) error_is_set(err, error_reason_parse(err, __VA_ARGS__))
#define error_reason_of(err, ...)    error_is_set(err, error_reason_of(err, __VA_ARGS__))
#define error_errno(err, ...)        error_is_set(err, error_errno(err, __VA_ARGS__))
#define error_prefix(err, ...)       error_is_set(err, error_prefix(err, __VA_ARGS__))
#endif
