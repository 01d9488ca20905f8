#include "server/gateway/openai/openai_field.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/http/http_body.h"
#include "server/gateway/http/http_ignored.h"

int openai_field_ignore(struct http_body *body, struct openai_ignored *ignored, const char *name)
{
    if (ignored->is_strict)
        return http_body_bad(body, name, "is unknown or has no effect (--http-strict)");
    http_ignored_add(&ignored->names, name);
    return http_body_skip(body);
}

int openai_field_not_built(struct http_body *body, const char *name, const char *rule)
{
    struct error *err = body->err;
    error_set(err, STATUS_UNIMPLEMENTED, "%s: %s", name, rule);
    snprintf(err->field, sizeof(err->field), "%s", name);
    return error_reason(err, REASON_FIELD_NOT_BUILT);
}

/* True if the JSON text of a value asks for nothing. */
static bool is_neutral(const char *text, double neutral)
{
    static const char *const empty[] = {"false", "\"\"", "[]", "{}", "null"};
    char digits[64];
    size_t n = 0;
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++)
        if (strcmp(text, empty[i]) == 0)
            return true;
    struct json_cursor cursor;
    struct json_number number;
    struct error err;
    n = strlen(text);
    if (n >= sizeof(digits) || (text[0] != '-' && (text[0] < '0' || text[0] > '9')) ||
        json_cursor_init(&cursor, text, n, NULL, 0, &err) != 0 ||
        json_cursor_number(&cursor, &number, &err) != 0)
        return false;
    return number.f == 0 || number.f == neutral;
}

int openai_field_refuse(struct http_body *body, const char *name, double neutral)
{
    char *text;
    int rc = http_body_raw(body, &text);
    if (rc || is_neutral(text, neutral))
        return rc;
    return openai_field_not_built(body, name, "is not built, and would change the answer");
}
