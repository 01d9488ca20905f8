#define ERROR_BODIES    /* error.c needs the functions themselves, not error.h's macros for clang's \
                           analyzer */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Messages contain texts of peers and files. vsnprintf may cut a text inside a code point, at the
 * end or at a "%.128s". Messages go into proto3 strings, which must be valid UTF-8. */
static void repair_utf8(char *text)
{
    size_t n = strlen(text), bad;
    n -= utf8_incomplete_tail(text, n);
    text[n] = '\0';
    for (size_t at = 0; !utf8_valid(text + at, n - at, &bad); at += bad + 1)
        text[at + bad] = '?';
}

__attribute__((format(printf, 2, 0))) static void format_message(struct error *err,
                                                                 const char *format, va_list args)
{
    vsnprintf(err->message, sizeof(err->message), format, args);
    repair_utf8(err->message);
}

int error_set(struct error *err, int status, const char *format, ...)
{
    va_list args;
    error_clear(err);
    err->status = status;
    va_start(args, format);
    format_message(err, format, args);
    va_end(args);
    return status;
}

int error_field(struct error *err, const char *field, const char *format, ...)
{
    va_list args;
    error_clear(err);
    err->status = STATUS_INVALID_ARGUMENT;
    snprintf(err->field, sizeof(err->field), "%s", field);
    int n = snprintf(err->message, sizeof(err->message), "%s: ", err->field);
    va_start(args, format);
    vsnprintf(err->message + n, sizeof(err->message) - (size_t)n, format, args);
    va_end(args);
    repair_utf8(err->message);
    return err->status;
}

int error_reason(struct error *err, enum reason reason)
{
    err->reason = reason;
    err->reason_text[0] = '\0';
    return err->status;
}

int error_reason_parse(struct error *err, const char *name)
{
    enum reason reason = reason_parse(name);
    snprintf(err->reason_text, sizeof(err->reason_text), "%s",
             reason == REASON_UNKNOWN ? name : "");
    repair_utf8(err->reason_text);
    err->reason = reason;
    return err->status;
}

int error_reason_of(struct error *err, const struct error *other)
{
    return error_reason_parse(err, error_reason_name(other));
}

const char *error_reason_name(const struct error *err)
{
    return err->reason == REASON_UNKNOWN ? err->reason_text : reason_name(err->reason);
}

int error_version(struct error *err, const char *version)
{
    snprintf(err->version, sizeof(err->version), "%s", version);
    return err->status;
}

int error_tokens_sent(struct error *err, uint64_t n_tokens)
{
    err->has_tokens_sent = true;
    err->n_tokens_sent = n_tokens;
    return err->status;
}

int error_errno(struct error *err, int err_no, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    char cause[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    const char *why = strerror_r(err_no, cause, sizeof(cause));
    return error_set(err, status_from_errno(err_no), "%s: %s", text, why);
}

int error_prefix(struct error *err, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    char old[ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(old, err->message, sizeof(old));
    int n = snprintf(err->message, sizeof(err->message), "%s: ", text);
    if (n > 0 && (size_t)n < sizeof(err->message))
        snprintf(err->message + n, sizeof(err->message) - (size_t)n, "%.*s",
                 (int)sizeof(err->message) - n - 1, old);
    repair_utf8(err->message);
    return err->status;
}

void error_clear(struct error *err)
{
    memset(err, 0, sizeof(*err));
}
