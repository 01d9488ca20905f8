#define ERROR_BODIES /* the functions themselves, not what the analyzer is shown of them */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts a string that vsnprintf may have ended inside a code point. */
static void trim_partial_utf8(char *text)
{
    size_t n = strlen(text);
    size_t back = 0;
    while (back < 3 && back < n && ((unsigned char)text[n - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back >= n)
        return;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    size_t need = lead < 0x80 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (need > back)
        text[n - 1 - back] = '\0';
}

static void format_message(struct error *err, const char *format, va_list args)
{
    vsnprintf(err->message, sizeof(err->message), format, args);
    trim_partial_utf8(err->message);
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
    trim_partial_utf8(err->message);
    return err->status;
}

int error_reason(struct error *err, const char *reason)
{
    snprintf(err->reason, sizeof(err->reason), "%s", reason);
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
        snprintf(err->message + n, sizeof(err->message) - (size_t)n, "%s", old);
    trim_partial_utf8(err->message);
    return err->status;
}

void error_clear(struct error *err)
{
    memset(err, 0, sizeof(*err));
}
