#include "server/gateway/base/error_names.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

static bool fits(const char *field, const char *from)
{
    size_t n = strlen(from);
    return strncmp(field, from, n) == 0 &&
           (from[n - 1] == '.' || field[n] == '\0' || field[n] == '[' || field[n] == '.');
}

/* Copies as many whole code points of the text as have a place. */
static void copy_text(char *out, size_t n_out, const char *text)
{
    size_t n = strnlen(text, n_out - 1);
    n -= utf8_incomplete_tail(text, n);
    memcpy(out, text, n);
    out[n] = '\0';
}

void error_names_set(struct error *err, const char *name)
{
    char text[ERROR_FIELD_BYTES + ERROR_MESSAGE_BYTES];
    size_t n = strlen(err->field);
    if (n && strncmp(err->message, err->field, n) == 0) {
        snprintf(text, sizeof(text), "%.*s%s", ERROR_FIELD_BYTES - 1, name, err->message + n);
        copy_text(err->message, sizeof(err->message), text);
    }
    copy_text(err->field, sizeof(err->field), name);
}

bool error_names_apply(struct error *err, const struct error_name *rows)
{
    for (const struct error_name *row = rows; row->from; row++) {
        char name[2 * ERROR_FIELD_BYTES];
        if (!fits(err->field, row->from))
            continue;
        snprintf(name, sizeof(name), "%.*s%s", ERROR_FIELD_BYTES - 1, row->to,
                 err->field + strlen(row->from));
        error_names_set(err, name);
        return true;
    }
    return false;
}
