#define JSON_READER_BODIES
#include "engine/text/source/json_reader.h"

#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "engine/text/facts/text_facts.h"

/* Remembers the result of a read. */
static bool note(struct json_reader *json, int rc)
{
    json->has_failed |= rc != 0;
    return rc == 0;
}

void json_fail(struct json_reader *json, const char *why)
{
    if (!json->has_failed)
        note(json, json_cursor_bad(&json->cursor, json->cursor.at, json->err, "%s", why));
}

bool json_failed(const struct json_reader *json)
{
    return json->has_failed;
}

int json_error(const struct json_reader *json, struct error *err)
{
    if (err != json->err)
        *err = *json->err;
    return err->status;
}

void json_init(struct json_reader *json, const char *text, size_t n_bytes, struct text_facts *facts,
               struct error *err)
{
    *json = (struct json_reader){.arena = &facts->arena, .err = err};
    if (!note(json, json_cursor_init(&json->cursor, text, n_bytes, facts->file, 0, err)))
        return;
    json->cursor.allows_nan = true;
    json->cursor.at = n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

enum json_kind json_peek(struct json_reader *json)
{
    static const enum json_kind kinds[] = {
        [JSON_VALUE_OBJECT] = JSON_OBJECT, [JSON_VALUE_ARRAY] = JSON_ARRAY,
        [JSON_VALUE_STRING] = JSON_STRING, [JSON_VALUE_NUMBER] = JSON_NUMBER,
        [JSON_VALUE_BOOL] = JSON_BOOL,     [JSON_VALUE_NULL] = JSON_NULL};
    enum json_value value = JSON_VALUE_NULL;
    struct error ignored; /* the read that follows fails too */
    if (json->has_failed || json_cursor_peek(&json->cursor, &value, &ignored) != 0)
        return JSON_NONE;
    return kinds[value];
}

void json_open(struct json_reader *json, enum json_kind kind)
{
    if (!json->has_failed)
        note(json, kind == JSON_ARRAY ? json_cursor_enter_array(&json->cursor, json->err)
                                      : json_cursor_enter_object(&json->cursor, json->err));
}

bool json_item(struct json_reader *json)
{
    bool more = false;
    return !json->has_failed &&
           note(json, json_cursor_next_element(&json->cursor, &more, json->err)) && more;
}

bool json_key(struct json_reader *json, struct json_text *out_key)
{
    struct json_text key = {NULL, 0};
    if (json->has_failed ||
        !note(json, json_cursor_next_text_key(&json->cursor, json->arena, &key.text, &key.n_bytes,
                                              json->err)))
        return false;
    if (key.text)
        *out_key = key;
    return key.text != NULL;
}

/* --- values --- */

struct json_text json_string(struct json_reader *json)
{
    struct json_text text = {"", 0};
    if (!json->has_failed)
        note(json,
             json_cursor_text(&json->cursor, json->arena, &text.text, &text.n_bytes, json->err));
    return text;
}

double json_number(struct json_reader *json)
{
    struct json_number number = {0};
    if (!json->has_failed)
        note(json, json_cursor_number(&json->cursor, &number, json->err));
    return number.f;
}

uint32_t json_uint(struct json_reader *json, uint32_t limit)
{
    size_t at = json->cursor.at;
    double value = json_number(json);
    if (json->has_failed)
        return 0;
    if (!(value >= 0 && value <= limit) || value != (double)(uint32_t)value) {
        note(json, json_cursor_bad(&json->cursor, at, json->err,
                                   "a number is no id or count, or is too large"));
        return 0;
    }
    return (uint32_t)value;
}

bool json_bool(struct json_reader *json)
{
    bool value = false;
    if (!json->has_failed)
        note(json, json_cursor_bool(&json->cursor, &value, json->err));
    return value;
}

void json_skip(struct json_reader *json)
{
    if (!json->has_failed)
        note(json, json_cursor_skip(&json->cursor, json->err));
}

void json_end(struct json_reader *json)
{
    if (!json->has_failed)
        note(json, json_cursor_end(&json->cursor, json->err));
}

bool json_is(struct json_text text, const char *word)
{
    return text.n_bytes == strlen(word) && memcmp(text.text, word, text.n_bytes) == 0;
}

bool json_find(const struct json_reader *object, const char *key, struct json_reader *out_value)
{
    struct json_reader r = *object;
    struct json_text name;
    bool found = false;
    if (json_peek(&r) != JSON_OBJECT)
        return false;
    json_open(&r, JSON_OBJECT);
    while (json_key(&r, &name)) {
        if (json_is(name, key)) {
            *out_value = r;
            found = true;
        }
        json_skip(&r);
    }
    if (r.has_failed)
        *out_value = r;
    return found || r.has_failed;
}
