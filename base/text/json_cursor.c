#include "base/text/json_cursor.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/utf8.h"

int(json_cursor_bad)(const struct json_cursor *cursor, size_t at, struct error *err,
                     const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!cursor->file)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the body is not the JSON that is expected: offset %zu: %s", at, text);
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s: offset %" PRIu64 ": %s%s%s; get another copy of the file", cursor->file,
              cursor->file_offset + at, cursor->scope, cursor->scope[0] ? ": " : "", text);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int(json_cursor_out_of_memory)(const struct json_cursor *cursor, struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory",
                     cursor->file ? cursor->file : "body");
}

int json_cursor_init(struct json_cursor *cursor, const char *text, size_t n_bytes, const char *file,
                     uint64_t file_offset, struct error *err)
{
    size_t wrong = 0;
    *cursor = (struct json_cursor){
        .text = text, .n_bytes = n_bytes, .file = file, .file_offset = file_offset};
    if (!utf8_valid(text, n_bytes, &wrong))
        return json_cursor_bad(cursor, wrong, err, "the text is not valid UTF-8 (byte 0x%02x)",
                               (unsigned)(unsigned char)text[wrong]);
    return 0;
}

void json_cursor_scope(struct json_cursor *cursor, const char *kind, const char *name)
{
    char text[ESCAPE_MAX_BYTES];
    snprintf(cursor->scope, sizeof(cursor->scope), "%s \"%s\"", kind,
             escape_text(name, strlen(name), text));
}

/* --- tokens --- */

static void skip_space(struct json_cursor *c)
{
    while (c->at < c->n_bytes && (c->text[c->at] == ' ' || c->text[c->at] == '\n' ||
                                  c->text[c->at] == '\r' || c->text[c->at] == '\t'))
        c->at++;
}

/* The next byte that is no white space; -1: the text has ended. */
static int next_byte(struct json_cursor *c)
{
    skip_space(c);
    return c->at < c->n_bytes ? (unsigned char)c->text[c->at] : -1;
}

static int unexpected(struct json_cursor *c, const char *expected, struct error *err)
{
    char text[ESCAPE_MAX_BYTES];
    if (next_byte(c) < 0)
        return json_cursor_bad(c, c->at, err, "the text ends, expected %s", expected);
    size_t n = c->n_bytes - c->at;
    uint32_t point;
    size_t length = utf8_decode(c->text + c->at, n, &point);
    return json_cursor_bad(c, c->at, err, "\"%s\", expected %s",
                           escape_text(c->text + c->at, length ? length : 1, text), expected);
}

static int take(struct json_cursor *c, char byte, const char *expected, struct error *err)
{
    if (next_byte(c) != (unsigned char)byte)
        return unexpected(c, expected, err);
    c->at++;
    c->is_fresh = false;
    return 0;
}

static bool starts_with(const struct json_cursor *c, const char *word)
{
    size_t n = strlen(word);
    return c->n_bytes - c->at >= n && memcmp(c->text + c->at, word, n) == 0;
}

static int take_word(struct json_cursor *c, const char *word, struct error *err)
{
    skip_space(c);
    if (!starts_with(c, word))
        return unexpected(c, word, err);
    c->at += strlen(word);
    c->is_fresh = false;
    return 0;
}

int json_cursor_peek(struct json_cursor *c, enum json_value *out_value, struct error *err)
{
    int byte = next_byte(c);
    switch (byte) {
    case '{':
        *out_value = JSON_VALUE_OBJECT;
        return 0;
    case '[':
        *out_value = JSON_VALUE_ARRAY;
        return 0;
    case '"':
        *out_value = JSON_VALUE_STRING;
        return 0;
    case 't':
    case 'f':
        *out_value = JSON_VALUE_BOOL;
        return 0;
    case 'n':
        *out_value = JSON_VALUE_NULL;
        return 0;
    default:
        if ((byte >= '0' && byte <= '9') || byte == '-' ||
            (c->allows_nan && (byte == 'N' || byte == 'I'))) {
            *out_value = JSON_VALUE_NUMBER;
            return 0;
        }
        return unexpected(c, "a value", err);
    }
}

/* --- containers --- */

static int enter(struct json_cursor *c, char open, const char *expected, struct error *err)
{
    int rc = take(c, open, expected, err);
    if (rc)
        return rc;
    if (c->depth == JSON_CURSOR_MAX_DEPTH)
        return json_cursor_bad(c, c->at - 1, err, "nested deeper than %d levels",
                               JSON_CURSOR_MAX_DEPTH);
    c->depth++;
    c->is_fresh = true;
    return 0;
}

int json_cursor_enter_object(struct json_cursor *c, struct error *err)
{
    return enter(c, '{', "an object", err);
}

int json_cursor_enter_array(struct json_cursor *c, struct error *err)
{
    return enter(c, '[', "an array", err);
}

/* Passes the comma before the next member, or the closing bracket. */
static int next_member(struct json_cursor *c, char close, bool *out_more, struct error *err)
{
    bool was_fresh = c->is_fresh;
    c->is_fresh = false;
    if (next_byte(c) == (unsigned char)close) {
        c->at++;
        c->depth--;
        *out_more = false;
        return 0;
    }
    *out_more = true;
    if (was_fresh)
        return 0;
    return take(c, ',', close == '}' ? "\",\" or \"}\"" : "\",\" or \"]\"", err);
}

int json_cursor_next_element(struct json_cursor *c, bool *out_more, struct error *err)
{
    return next_member(c, ']', out_more, err);
}

int json_cursor_next_text_key(struct json_cursor *c, struct arena *arena, const char **out_key,
                              size_t *out_n_bytes, struct error *err)
{
    bool more;
    const char *key = NULL;
    size_t n = 0;
    int rc = next_member(c, '}', &more, err);
    if (rc || !more) {
        *out_key = NULL;
        return rc;
    }
    if (next_byte(c) != '"')
        return unexpected(c, "a key", err);
    rc = json_cursor_text(c, arena, &key, &n, err);
    if (!rc)
        rc = take(c, ':', "\":\"", err);
    if (rc)
        return rc;
    *out_key = key;
    *out_n_bytes = n;
    return 0;
}

int json_cursor_next_key(struct json_cursor *c, struct arena *arena, size_t max_bytes,
                         const char **out_key, struct error *err)
{
    bool more;
    size_t n = 0;
    const char *key = NULL;
    int rc = next_member(c, '}', &more, err);
    if (rc || !more) {
        *out_key = NULL;
        return rc;
    }
    if (next_byte(c) != '"')
        return unexpected(c, "a key", err);
    size_t start = c->at;
    rc = json_cursor_string(c, arena, max_bytes, &key, &n, err);
    if (rc)
        return rc;
    if (!n)
        return json_cursor_bad(c, start, err, "the key is empty");
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] < 0x20 || key[i] == 0x7F)
            return json_cursor_bad(c, start, err, "control character 0x%02x in the key",
                                   (unsigned)(unsigned char)key[i]);
    rc = take(c, ':', "\":\"", err);
    if (!rc)
        *out_key = key;
    return rc;
}

/* --- strings --- */

/* Four hexadecimal digits. */
static bool read_hex(const char *text, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            return false;
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

/* Decodes \uXXXX, or the two of a surrogate pair, at the backslash. `end` is the closing quote.
 * Returns the bytes read; 0: no character. */
static size_t decode_escape(const char *text, size_t n, char out[4], size_t *out_n)
{
    uint32_t point, low;
    if (n < 6 || !read_hex(text + 2, &point))
        return 0;
    size_t n_read = 6;
    if (point >= 0xD800 && point < 0xDC00) {
        if (n < 12 || text[6] != '\\' || text[7] != 'u' || !read_hex(text + 8, &low) ||
            low < 0xDC00 || low > 0xDFFF)
            return 0;
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        n_read = 12;
    }
    *out_n = utf8_encode(point, out);
    return *out_n ? n_read : 0;
}

/* Bytes of the characters that follow a backslash, except `u`. */
static const char escape_codes[] = "\"\\/bfnrt", escape_bytes[] = "\"\\/\b\f\n\r\t";

/* Length of the escape sequence at text[0]; 0: it is none. */
static size_t escape_length(const char *text, size_t n)
{
    char utf8[4];
    size_t n_utf8 = 0;
    if (n < 2)
        return 0;
    if (text[1] == 'u')
        return decode_escape(text, n, utf8, &n_utf8);
    return memchr(escape_codes, text[1], sizeof(escape_codes) - 1) ? 2 : 0;
}

/* Checks the string that opens at c->at. *out_end is the position of its closing quote. */
static int scan_string(struct json_cursor *c, size_t *out_end, bool *out_has_escapes,
                       struct error *err)
{
    size_t i;
    *out_has_escapes = false;
    if (next_byte(c) != '"')
        return unexpected(c, "a string", err);
    for (i = c->at + 1; i < c->n_bytes && c->text[i] != '"';) {
        size_t n = 1;
        if ((unsigned char)c->text[i] < 0x20)
            return json_cursor_bad(c, i, err, "control character 0x%02x in a string",
                                   (unsigned)(unsigned char)c->text[i]);
        if (c->text[i] == '\\') {
            n = escape_length(c->text + i, c->n_bytes - i);
            *out_has_escapes = true;
        }
        if (!n)
            return json_cursor_bad(c, i, err, "no valid escape sequence");
        i += n;
    }
    if (i >= c->n_bytes)
        return json_cursor_bad(c, c->at, err, "the string has no end");
    *out_end = i;
    return 0;
}

/* Writes a checked string's text [begin, end), unescaped and terminated. Returns its length. */
static size_t unescape(const struct json_cursor *c, size_t begin, size_t end, char *out)
{
    size_t n = 0;
    for (size_t i = begin; i < end;) {
        size_t n_out = 0;
        if (c->text[i] != '\\') {
            out[n++] = c->text[i++];
        } else if (c->text[i + 1] == 'u') {
            i += decode_escape(c->text + i, end - i, out + n, &n_out);
            n += n_out;
        } else {
            const char *code = memchr(escape_codes, c->text[i + 1], sizeof(escape_codes) - 1);
            out[n++] = escape_bytes[code - escape_codes];
            i += 2;
        }
    }
    out[n] = '\0';
    return n;
}

static void leave_string(struct json_cursor *c, size_t end)
{
    c->at = end + 1;
    c->is_fresh = false;
}

int json_cursor_string(struct json_cursor *c, struct arena *arena, size_t max_bytes,
                       const char **out_text, size_t *out_n_bytes, struct error *err)
{
    size_t end = 0;
    bool has_escapes;
    int rc = scan_string(c, &end, &has_escapes, err);
    if (rc)
        return rc;
    if (end - c->at - 1 > max_bytes)
        return json_cursor_bad(c, c->at, err, "string of %zu bytes is over the limit of %zu bytes",
                               end - c->at - 1, max_bytes);
    char *text = arena_alloc(arena, end - c->at);
    if (!text)
        return json_cursor_out_of_memory(c, err);
    *out_n_bytes = unescape(c, c->at + 1, end, text);
    *out_text = text;
    leave_string(c, end);
    return 0;
}

int json_cursor_text(struct json_cursor *c, struct arena *arena, const char **out_text,
                     size_t *out_n_bytes, struct error *err)
{
    size_t end = 0;
    bool has_escapes;
    int rc = scan_string(c, &end, &has_escapes, err);
    if (rc)
        return rc;
    if (has_escapes) {
        char *text = arena_alloc(arena, end - c->at);
        if (!text)
            return json_cursor_out_of_memory(c, err);
        *out_n_bytes = unescape(c, c->at + 1, end, text);
        *out_text = text;
    } else {
        *out_text = c->text + c->at + 1;
        *out_n_bytes = end - c->at - 1;
    }
    leave_string(c, end);
    return 0;
}

/* --- numbers and words --- */

enum { SHORT_DIGITS = 15 }; /* a double holds every integer of so many digits */

static size_t count_digits(const struct json_cursor *c, size_t at)
{
    size_t n = 0;
    while (at + n < c->n_bytes && c->text[at + n] >= '0' && c->text[at + n] <= '9')
        n++;
    return n;
}

/* Length of the number at c->at by RFC 8259; 0: it is none. */
static size_t number_length(const struct json_cursor *c, bool *out_is_integer)
{
    size_t at = c->at;
    *out_is_integer = true;
    if (c->text[at] == '-')
        at++;
    size_t n = count_digits(c, at);
    if (!n || (n > 1 && c->text[at] == '0'))
        return 0;
    at += n;
    if (at < c->n_bytes && c->text[at] == '.') {
        *out_is_integer = false;
        n = count_digits(c, at + 1);
        if (!n)
            return 0;
        at += 1 + n;
    }
    if (at < c->n_bytes && (c->text[at] == 'e' || c->text[at] == 'E')) {
        *out_is_integer = false;
        at++;
        if (at < c->n_bytes && (c->text[at] == '+' || c->text[at] == '-'))
            at++;
        n = count_digits(c, at);
        if (!n)
            return 0;
        at += n;
    }
    return at - c->at;
}

/* True if the names of NaN and infinity are allowed and the next one was passed. */
static bool take_nan(struct json_cursor *c, double *out)
{
    static const struct {
        const char *word;
        double value;
    } names[] = {
        {"NaN", (double)NAN}, {"Infinity", (double)INFINITY}, {"-Infinity", -(double)INFINITY}};
    for (size_t i = 0; c->allows_nan && i < sizeof(names) / sizeof(names[0]); i++)
        if (starts_with(c, names[i].word)) {
            c->at += strlen(names[i].word);
            *out = names[i].value;
            return true;
        }
    return false;
}

int json_cursor_number(struct json_cursor *c, struct json_number *out, struct error *err)
{
    char text[JSON_CURSOR_MAX_NUMBER_BYTES + 1];
    struct json_number number = {0};
    int byte = next_byte(c);
    if (byte >= 0 && take_nan(c, &number.f)) {
        c->is_fresh = false;
        *out = number;
        return 0;
    }
    if ((byte < '0' || byte > '9') && byte != '-')
        return unexpected(c, "a number", err);
    size_t n = number_length(c, &number.is_integer);
    if (!n)
        return json_cursor_bad(c, c->at, err, "no valid number");
    if (number.is_integer && n <= SHORT_DIGITS && byte != '-') {
        for (size_t i = 0; i < n; i++)
            number.u = 10 * number.u + (uint64_t)(c->text[c->at + i] - '0');
        number.f = (double)number.u;
        c->at += n;
        c->is_fresh = false;
        *out = number;
        return 0;
    }
    if (n > JSON_CURSOR_MAX_NUMBER_BYTES)
        return json_cursor_bad(c, c->at, err, "a number of %zu digits, at most %d are read", n,
                               JSON_CURSOR_MAX_NUMBER_BYTES);
    memcpy(text, c->text + c->at, n);
    text[n] = '\0';
    number.f = strtod(text, NULL);
    if (!isfinite(number.f))
        return json_cursor_bad(c, c->at, err, "the number is out of range");
    if (number.is_integer) {
        errno = 0;
        if (text[0] == '-')
            number.i = strtoll(text, NULL, 10);
        else
            number.u = strtoull(text, NULL, 10);
        number.is_negative = number.i < 0; /* -0 is not */
        number.is_integer = errno == 0;
    }
    c->at += n;
    c->is_fresh = false;
    *out = number;
    return 0;
}

int json_cursor_bool(struct json_cursor *c, bool *out, struct error *err)
{
    bool value = next_byte(c) == 't';
    int rc = take_word(c, value ? "true" : "false", err);
    if (!rc)
        *out = value;
    return rc;
}

int json_cursor_null(struct json_cursor *c, struct error *err)
{
    return take_word(c, "null", err);
}

/* --- skipping --- */

/* Passes a string without a copy. */
static int skip_string(struct json_cursor *c, struct error *err)
{
    size_t end = 0;
    bool has_escapes;
    int rc = scan_string(c, &end, &has_escapes, err);
    if (!rc)
        leave_string(c, end);
    return rc;
}

static int skip_scalar(struct json_cursor *c, enum json_value value, struct error *err)
{
    struct json_number number = {0};
    bool flag;
    switch (value) {
    case JSON_VALUE_STRING:
        return skip_string(c, err);
    case JSON_VALUE_NUMBER:
        return json_cursor_number(c, &number, err);
    case JSON_VALUE_BOOL:
        return json_cursor_bool(c, &flag, err);
    default:
        return json_cursor_null(c, err);
    }
}

int json_cursor_skip(struct json_cursor *c, struct error *err)
{
    bool is_object[JSON_CURSOR_MAX_DEPTH + 1];
    uint32_t outer = c->depth;
    do {
        enum json_value value = JSON_VALUE_NULL;
        int rc = json_cursor_peek(c, &value, err);
        if (rc)
            return rc;
        bool is_container = value == JSON_VALUE_OBJECT || value == JSON_VALUE_ARRAY;
        rc = value == JSON_VALUE_OBJECT  ? json_cursor_enter_object(c, err)
             : value == JSON_VALUE_ARRAY ? json_cursor_enter_array(c, err)
                                         : skip_scalar(c, value, err);
        if (rc)
            return rc;
        if (is_container)
            is_object[c->depth] = value == JSON_VALUE_OBJECT;
        bool more = false;
        while (c->depth > outer && !more) { /* to the next value: out of all that ends here */
            bool in_object = is_object[c->depth];
            rc = next_member(c, in_object ? '}' : ']', &more, err);
            if (!rc && more && in_object)
                rc = skip_string(c, err);
            if (!rc && more && in_object)
                rc = take(c, ':', "\":\"", err);
            if (rc)
                return rc;
        }
    } while (c->depth > outer);
    return 0;
}

int json_cursor_end(struct json_cursor *c, struct error *err)
{
    return next_byte(c) < 0 ? 0 : unexpected(c, "the end of the text", err);
}
