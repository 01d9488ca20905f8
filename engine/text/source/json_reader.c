#define JSON_READER_BODIES
#include "engine/text/source/json_reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/utf8.h"
#include "engine/text/facts/text_facts.h"

void json_fail(struct json_reader *json, const char *why)
{
    if (!json->why)
        json->why = why;
}

bool json_failed(const struct json_reader *json)
{
    return json->why != NULL;
}

int json_error(const struct json_reader *json, const struct text_facts *facts, struct error *err)
{
    char part[48];
    snprintf(part, sizeof(part), "offset %zu", json->at);
    return text_facts_bad(facts, part, err, "%s", json->why);
}

void json_init(struct json_reader *json, const char *text, size_t n_bytes, struct arena *arena)
{
    *json = (struct json_reader){.text = text, .n_bytes = n_bytes, .arena = arena};
    if (!utf8_valid(text, n_bytes, &json->at))
        json_fail(json, "the text is not UTF-8");
    else
        json->at = n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* The next character after white space, or 0. */
static char next(struct json_reader *json)
{
    if (json->why)
        return 0;
    while (json->at < json->n_bytes) {
        char c = json->text[json->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
            return c;
        json->at++;
    }
    return 0;
}

static bool take(struct json_reader *json, char c)
{
    if (next(json) != c)
        return false;
    json->at++;
    return true;
}

enum json_kind json_peek(struct json_reader *json)
{
    char c = next(json);
    return c == '{'                             ? JSON_OBJECT
           : c == '['                           ? JSON_ARRAY
           : c == '"'                           ? JSON_STRING
           : c == 't' || c == 'f'               ? JSON_BOOL
           : c == 'n'                           ? JSON_NULL
           : c == '-' || (c >= '0' && c <= '9') ? JSON_NUMBER
                                                : JSON_NONE;
}

void json_open(struct json_reader *json, enum json_kind kind)
{
    if (!take(json, kind == JSON_ARRAY ? '[' : '{')) {
        json_fail(json, kind == JSON_ARRAY ? "an array is expected" : "an object is expected");
        return;
    }
    if (json->depth == JSON_MAX_DEPTH)
        json_fail(json, "the values are nested deeper than 64 levels");
    else
        json->is_first[json->depth++] = true;
}

/* Passes a comma before the next element. Returns false at the end and on failure. */
static bool element(struct json_reader *json, char end)
{
    if (json->why || !json->depth)
        return false;
    bool *is_first = &json->is_first[json->depth - 1];
    if (take(json, end)) {
        json->depth--;
        return false;
    }
    if (!*is_first && !take(json, ','))
        json_fail(json, "a comma or an end is missing");
    *is_first = false;
    return !json->why;
}

bool json_item(struct json_reader *json)
{
    return element(json, ']');
}

bool json_key(struct json_reader *json, struct json_text *out_key)
{
    if (!element(json, '}'))
        return false;
    *out_key = json_string(json);
    if (!json->why && !take(json, ':'))
        json_fail(json, "a colon is missing");
    return !json->why;
}

/* --- strings --- */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Reads the four digits of \uXXXX at text[at]; -1 if they are none. */
static int32_t unit_at(const struct json_reader *json, size_t at)
{
    int32_t value = 0;
    if (json->n_bytes - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        int digit = hex(json->text[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Writes the character of the escape after the backslash at text[*at - 1]; moves *at behind it. */
static size_t unescape(struct json_reader *json, size_t *at, char *out)
{
    static const char names[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    char c = *at < json->n_bytes ? json->text[(*at)++] : 0;
    for (size_t i = 0; i + 1 < sizeof(names) - 1; i += 2)
        if (c && c == names[i]) {
            *out = names[i + 1];
            return 1;
        }
    int32_t unit = c == 'u' ? unit_at(json, *at) : -1;
    uint32_t point = (uint32_t)unit;
    if (unit >= 0) {
        *at += 4;
        bool high = unit >= 0xD800 && unit < 0xDC00;
        bool pair = high && json->n_bytes - *at >= 6 && json->text[*at] == '\\' &&
                    json->text[*at + 1] == 'u';
        int32_t low = pair ? unit_at(json, *at + 2) : -1;
        if (low >= 0xDC00 && low < 0xE000) {
            point = 0x10000 + ((uint32_t)(unit - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
            *at += 6;
        }
    }
    size_t n = unit >= 0 ? utf8_encode(point, out) : 0;
    if (!n)
        json_fail(json, "an escape is not valid");
    return n;
}

struct json_text json_string(struct json_reader *json)
{
    struct json_text none = {"", 0};
    if (!take(json, '"')) {
        json_fail(json, "a string is expected");
        return none;
    }
    size_t from = json->at, to = from;
    bool escaped = false;
    while (to < json->n_bytes && json->text[to] != '"') {
        if ((unsigned char)json->text[to] < 0x20) {
            json_fail(json, "a string has a control character");
            return none;
        }
        escaped |= json->text[to] == '\\';
        to += json->text[to] == '\\' ? 2 : 1;
    }
    if (to >= json->n_bytes) {
        json_fail(json, "a string has no end");
        return none;
    }
    json->at = to + 1;
    if (!escaped)
        return (struct json_text){json->text + from, to - from};
    char *out = arena_alloc(json->arena, to - from + 1);
    size_t n = 0;
    if (!out) {
        json_fail(json, "no memory");
        return none;
    }
    for (size_t i = from; i < to && !json->why;) {
        if (json->text[i] != '\\') {
            out[n++] = json->text[i++];
            continue;
        }
        i++;
        n += unescape(json, &i, out + n);
    }
    return json->why ? none : (struct json_text){out, n};
}

/* --- other values --- */

double json_number(struct json_reader *json)
{
    char digits[64];
    size_t n = 0;
    if (json_peek(json) != JSON_NUMBER) {
        json_fail(json, "a number is expected");
        return 0;
    }
    while (
        json->at < json->n_bytes && n + 1 < sizeof(digits) &&
        (isdigit((unsigned char)json->text[json->at]) || strchr("+-.eE", json->text[json->at])) &&
        json->text[json->at])
        digits[n++] = json->text[json->at++];
    digits[n] = '\0';
    char *end;
    double value = strtod(digits, &end);
    if (*end || end == digits)
        json_fail(json, "a number is not valid");
    return json->why ? 0 : value;
}

uint32_t json_uint(struct json_reader *json, uint32_t limit)
{
    double value = json_number(json);
    if (!(value >= 0 && value <= limit) || value != (double)(uint32_t)value) {
        json_fail(json, "a number is no id or count, or is too large");
        return 0;
    }
    return (uint32_t)value;
}

static bool word(struct json_reader *json, const char *text)
{
    size_t n = strlen(text);
    next(json);
    if (json->why || json->n_bytes - json->at < n || memcmp(json->text + json->at, text, n) != 0)
        return false;
    json->at += n;
    return true;
}

bool json_bool(struct json_reader *json)
{
    if (word(json, "true"))
        return true;
    if (!word(json, "false"))
        json_fail(json, "true or false is expected");
    return false;
}

void json_skip(struct json_reader *json)
{
    uint32_t depth = 0;
    do {
        char c = next(json);
        switch (json_peek(json)) {
        case JSON_STRING: { /* without a copy: escapes are only passed over */
            size_t to = json->at + 1;
            while (to < json->n_bytes && json->text[to] != '"')
                to += json->text[to] == '\\' ? 2 : 1;
            if (to >= json->n_bytes)
                json_fail(json, "a string has no end");
            json->at = to + 1;
            break;
        }
        case JSON_OBJECT:
        case JSON_ARRAY:
            depth++;
            json->at++;
            break;
        case JSON_NUMBER:
            json_number(json);
            break;
        case JSON_BOOL:
            json_bool(json);
            break;
        case JSON_NULL:
            if (!word(json, "null"))
                json_fail(json, "a value is not valid");
            break;
        case JSON_NONE:
            if (depth && (c == '}' || c == ']'))
                depth--;
            else if (!depth || (c != ',' && c != ':'))
                json_fail(json, "a value is expected");
            json->at++;
            break;
        }
        if (depth > JSON_MAX_DEPTH)
            json_fail(json, "the values are nested deeper than 64 levels");
    } while (depth && !json->why);
}

void json_end(struct json_reader *json)
{
    json_peek(json);
    if (json->at < json->n_bytes)
        json_fail(json, "text follows the value");
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
        if (json_is(name, key)) { /* as elsewhere, the last of equal keys counts */
            *out_value = r;
            found = true;
        }
        json_skip(&r);
    }
    return found && !json_failed(&r);
}
