#include "clients/cli/http/openai_error.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/text/json_cursor.h"

enum { MAX_LINE = 200, MAX_KEY = 256, ARENA_BYTES = 1 << 20, CODE_BYTES = 64 };

/* The server's description of an error. */
struct said {
    char message[ERROR_MESSAGE_BYTES - 64], param[ERROR_FIELD_BYTES], code[CODE_BYTES],
        type[CODE_BYTES];
    bool has_any;
};

static int read_value(struct json_cursor *cursor, struct arena *arena, struct said *out,
                      struct error *err);

static int copy_text(struct json_cursor *cursor, struct arena *arena, char *out, size_t n_out,
                     struct error *err)
{
    const char *text;
    size_t n;
    int rc = json_cursor_text(cursor, arena, &text, &n, err);
    if (!rc)
        snprintf(out, n_out, "%.*s", n < n_out ? (int)n : (int)n_out - 1, text);
    return rc;
}

/* A text goes to `out`; another value is passed over. A number becomes its digits. */
static int read_text(struct json_cursor *cursor, struct arena *arena, char *out, size_t n_out,
                     struct error *err)
{
    enum json_value kind;
    struct json_number number;
    int rc = json_cursor_peek(cursor, &kind, err);
    if (rc || kind == JSON_VALUE_STRING)
        return rc ? rc : copy_text(cursor, arena, out, n_out, err);
    if (kind != JSON_VALUE_NUMBER)
        return json_cursor_skip(cursor, err);
    rc = json_cursor_number(cursor, &number, err);
    if (!rc)
        snprintf(out, n_out, "%.17g", number.f);
    return rc;
}

static int read_object(struct json_cursor *cursor, struct arena *arena, struct said *out,
                       struct error *err)
{
    int rc = json_cursor_enter_object(cursor, err);
    while (!rc) {
        const char *key;
        size_t n;
        rc = json_cursor_next_text_key(cursor, arena, &key, &n, err);
        if (rc || !key)
            return rc;
        if (n == 7 && memcmp(key, "message", 7) == 0)
            rc = read_text(cursor, arena, out->message, sizeof(out->message), err);
        else if (n == 5 && memcmp(key, "param", 5) == 0)
            rc = read_text(cursor, arena, out->param, sizeof(out->param), err);
        else if (n == 4 && memcmp(key, "code", 4) == 0)
            rc = read_text(cursor, arena, out->code, sizeof(out->code), err);
        else if (n == 4 && memcmp(key, "type", 4) == 0)
            rc = read_text(cursor, arena, out->type, sizeof(out->type), err);
        else if ((n == 5 && memcmp(key, "error", 5) == 0) ||
                 (n == 6 && memcmp(key, "detail", 6) == 0))
            rc = read_value(cursor, arena, out, err);
        else
            rc = json_cursor_skip(cursor, err);
    }
    return rc;
}

static int read_value(struct json_cursor *cursor, struct arena *arena, struct said *out,
                      struct error *err)
{
    enum json_value kind;
    int rc = json_cursor_peek(cursor, &kind, err);
    if (rc)
        return rc;
    if (kind == JSON_VALUE_OBJECT) {
        out->has_any = true;
        return read_object(cursor, arena, out, err);
    }
    if (kind == JSON_VALUE_STRING) {
        rc = copy_text(cursor, arena, out->message, sizeof(out->message), err);
        out->has_any |= out->message[0] != '\0';
        return rc;
    }
    if (kind == JSON_VALUE_BOOL) {
        bool value = false;
        rc = json_cursor_bool(cursor, &value, err);
        out->has_any |= value;
        return rc;
    }
    out->has_any |= kind != JSON_VALUE_NULL;
    return json_cursor_skip(cursor, err);
}

static int status_of(unsigned http)
{
    static const struct {
        unsigned http;
        int status;
    } rows[] = {
        {400, STATUS_INVALID_ARGUMENT},  {401, STATUS_UNAUTHENTICATED},
        {403, STATUS_PERMISSION_DENIED}, {404, STATUS_NOT_FOUND},
        {405, STATUS_UNIMPLEMENTED},     {408, STATUS_DEADLINE_EXCEEDED},
        {409, STATUS_ABORTED},           {413, STATUS_RESOURCE_EXHAUSTED},
        {422, STATUS_INVALID_ARGUMENT},  {429, STATUS_RESOURCE_EXHAUSTED},
        {501, STATUS_UNIMPLEMENTED},     {502, STATUS_UNAVAILABLE},
        {503, STATUS_UNAVAILABLE},       {504, STATUS_DEADLINE_EXCEEDED},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].http == http)
            return rows[i].status;
    if (http < 400)
        return STATUS_FAILED_PRECONDITION;
    return http < 500 ? STATUS_INVALID_ARGUMENT : STATUS_INTERNAL;
}

/* Sluice's own servers give a reason as the code, in lower case. Others name a full context in
 * several ways. */
static enum reason reason_of(const struct said *said)
{
    static const char *const full[] = {"context_length_exceeded", "exceed_context_size_error"};
    char name[CODE_BYTES];
    for (size_t i = 0; i < sizeof(full) / sizeof(full[0]); i++)
        if (strcmp(said->code, full[i]) == 0 || strcmp(said->type, full[i]) == 0)
            return REASON_CONTEXT_TOO_LONG;
    if (strstr(said->message, "maximum context length"))
        return REASON_CONTEXT_TOO_LONG;
    for (size_t i = 0; i < sizeof(name); i++)
        name[i] = (char)toupper((unsigned char)said->code[i]);
    enum reason reason = reason_parse(name);
    return reason == REASON_UNKNOWN ? REASON_NONE : reason;
}

static void fill(int status, const struct said *said, struct error *err)
{
    error_set(err, status, "the server says: %s",
              said->message[0] ? said->message : "an error without a message");
    snprintf(err->field, sizeof(err->field), "%s", said->param);
    enum reason reason = reason_of(said);
    if (reason)
        error_reason(err, reason);
}

/* A server without OpenAI's API may give a line of text. A page of HTML would only confuse. */
static void describe_other(unsigned http_status, const char *body, size_t n_bytes, struct said *out)
{
    int n = 0;
    while ((size_t)n < n_bytes && n < MAX_LINE && body[n] >= 0x20 && body[n] < 0x7F)
        n++;
    bool is_line = n > 0 && body[0] != '<' && body[0] != '{' && body[0] != '[';
    snprintf(out->message, sizeof(out->message), "HTTP status %u%s%.*s", http_status,
             is_line ? ": " : "", is_line ? n : 0, body);
}

void openai_error_of_response(unsigned http_status, const char *location, const char *body,
                              size_t n_bytes, struct error *err)
{
    struct said said = {0};
    struct json_cursor cursor;
    struct arena arena;
    if (http_status >= 300 && http_status < 400 && location[0]) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "the server redirects to %s; redirects are not followed, so give that address",
                  location);
        return;
    }
    arena_init(&arena, 0, ARENA_BYTES);
    bool is_json = json_cursor_init(&cursor, body, n_bytes, "the server's answer", 0, err) == 0 &&
                   read_value(&cursor, &arena, &said, err) == 0;
    arena_fini(&arena);
    if (!is_json || !said.message[0])
        describe_other(http_status, body, n_bytes, &said);
    fill(status_of(http_status), &said, err);
}

int openai_error_read(struct json_cursor *cursor, struct error *err)
{
    struct said said = {0};
    struct arena arena;
    arena_init(&arena, 0, ARENA_BYTES);
    int rc = read_value(cursor, &arena, &said, err);
    arena_fini(&arena);
    if (rc)
        return error_set(err, STATUS_DATA_LOSS, "the server's error is no valid JSON");
    if (!said.has_any)
        return 0;
    unsigned http = 0; /* in a stream the code may be the status that came too late */
    if (strlen(said.code) == 3 && strspn(said.code, "0123456789") == 3)
        http = (unsigned)(said.code[0] - '0') * 100 + (unsigned)(said.code[1] - '0') * 10 +
               (unsigned)(said.code[2] - '0');
    fill(http >= 400 ? status_of(http) : STATUS_INTERNAL, &said, err);
    return err->status;
}
