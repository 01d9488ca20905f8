#include "engine/template/value/json_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

struct json_reader {
    struct interp *in;
    const char *field;
    const char *text;
    size_t n_bytes, at;
    bool unique;
};

static struct value fail(struct json_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static struct value fail(struct json_reader *r, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list args;
    if (r->in->failed)
        return value_none();
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    r->in->failed = true;
    error_field(r->in->err, r->field, "not JSON at byte %zu: %s", r->at, text);
    return value_none();
}

static char peek(const struct json_reader *r)
{
    return r->at < r->n_bytes ? r->text[r->at] : '\0';
}

static void skip_space(struct json_reader *r)
{
    while (r->at < r->n_bytes && r->text[r->at] && strchr(" \t\n\r", r->text[r->at]))
        r->at++;
}

static bool skip_char(struct json_reader *r, char ch)
{
    if (r->at >= r->n_bytes || r->text[r->at] != ch)
        return false;
    r->at++;
    return true;
}

/* --- strings --- */

/* Reads the four hexadecimal digits at r->at. Returns false if there are fewer. */
static bool hex_unit(struct json_reader *r, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        unsigned char ch = (unsigned char)peek(r);
        if (!isxdigit(ch))
            return false;
        int digit = isdigit(ch) ? ch - '0' : tolower(ch) - 'a' + 10;
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* Reads the escape behind a backslash; *n grows by the bytes written. */
static bool read_escape(struct json_reader *r, char *out, size_t *n)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char letter = peek(r);
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (found) {
        out[(*n)++] = meanings[found - letters];
        r->at++;
        return true;
    }
    uint32_t unit, low;
    if (letter != 'u') {
        fail(r, "unknown escape");
        return false;
    }
    r->at++;
    if (!hex_unit(r, &unit)) {
        fail(r, "\\u needs four hexadecimal digits");
        return false;
    }
    if (unit >= 0xD800 && unit < 0xDC00 && r->n_bytes - r->at >= 6 && r->text[r->at] == '\\' &&
        r->text[r->at + 1] == 'u') {
        r->at += 2;
        if (hex_unit(r, &low) && low >= 0xDC00 && low < 0xE000)
            unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    size_t n_encoded = utf8_encode(unit, out + *n);
    *n += n_encoded;
    if (!n_encoded)
        fail(r, "a single surrogate is not a character");
    return n_encoded > 0;
}

/* Reads the string whose opening quote is at r->at. */
static struct value read_string(struct json_reader *r)
{
    size_t begin = ++r->at, end = begin, n = 0;
    bool plain = true;
    while (end < r->n_bytes && r->text[end] != '"') {
        plain &= r->text[end] != '\\';
        end += r->text[end] == '\\' ? 2 : 1;
    }
    if (end >= r->n_bytes) {
        r->at = r->n_bytes;
        return fail(r, "the string has no closing quote");
    }
    char *out = plain ? NULL : interp_alloc(r->in, end - begin + 1, 1);
    if (!plain && !out)
        return value_none();
    while (r->at < end) {
        unsigned char ch = (unsigned char)r->text[r->at];
        if (ch < 0x20)
            return fail(r, "control character 0x%02x in a string", ch);
        r->at++;
        if (!plain && ch != '\\')
            out[n++] = (char)ch;
        else if (ch == '\\' && !read_escape(r, out, &n))
            return value_none();
    }
    r->at++;
    return plain ? text_new(r->in, r->text + begin, end - begin) : text_new(r->in, out, n);
}

/* --- numbers and literals --- */

static size_t skip_digits(struct json_reader *r)
{
    size_t begin = r->at;
    while (isdigit((unsigned char)peek(r)))
        r->at++;
    return r->at - begin;
}

static struct value read_number(struct json_reader *r)
{
    size_t begin = r->at;
    skip_char(r, '-');
    size_t first = r->at, n_digits = skip_digits(r);
    if (!n_digits)
        return fail(r, "expected digits of a number");
    if (n_digits > 1 && r->text[first] == '0') {
        r->at = first + 1;
        return fail(r, "a number must not begin with 0");
    }
    size_t end = r->at;
    if (skip_char(r, '.') && !skip_digits(r))
        r->at = end; /* like Python: the number ends before the point */
    size_t fraction_end = r->at;
    if (skip_char(r, 'e') || skip_char(r, 'E')) {
        if (!skip_char(r, '-'))
            skip_char(r, '+');
        if (!skip_digits(r))
            r->at = fraction_end;
    }
    if (r->at != end)
        return value_float(strtod(r->text + begin, NULL));
    if (n_digits > JSON_MAX_INTEGER_DIGITS)
        return fail(r, "an integer of %zu digits, the limit is %d", n_digits,
                    JSON_MAX_INTEGER_DIGITS);
    return value_from_digits(r->in, r->text + begin, end - begin);
}

static struct value read_word(struct json_reader *r)
{
    const struct {
        const char *word;
        struct value value;
    } words[] = {
        {"null", value_none()},
        {"true", value_bool(true)},
        {"false", value_bool(false)},
        {"NaN", value_float(strtod("nan", NULL))},
        {"Infinity", value_float(strtod("inf", NULL))},
        {"-Infinity", value_float(-strtod("inf", NULL))},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i].word);
        if (r->n_bytes - r->at >= n && memcmp(r->text + r->at, words[i].word, n) == 0) {
            r->at += n;
            return words[i].value;
        }
    }
    return peek(r) == '-' || isdigit((unsigned char)peek(r)) ? read_number(r)
                                                             : fail(r, "expected a value");
}

/* --- containers --- */

static struct value read_value(struct json_reader *r, unsigned depth);

static bool read_member(struct json_reader *r, struct dict *dict, unsigned depth)
{
    size_t key_at = r->at;
    if (peek(r) != '"') {
        fail(r, "expected a key in quotes");
        return false;
    }
    struct value key = read_string(r);
    skip_space(r);
    if (r->in->failed)
        return false;
    if (!skip_char(r, ':')) {
        fail(r, "':' is missing");
        return false;
    }
    struct value item = read_value(r, depth + 1);
    if (r->in->failed)
        return false;
    if (r->unique && dict_get(r->in, dict, key, NULL)) {
        r->at = key_at;
        fail(r, "duplicate key");
        return false;
    }
    return dict_set(r->in, dict, key, item);
}

static struct value read_object(struct json_reader *r, unsigned depth)
{
    struct dict *dict = dict_new(r->in);
    r->at++;
    skip_space(r);
    if (!dict || skip_char(r, '}'))
        return dict ? value_dict(dict) : value_none();
    while (read_member(r, dict, depth)) {
        skip_space(r);
        if (skip_char(r, '}'))
            return value_dict(dict);
        if (!skip_char(r, ','))
            return fail(r, "',' or '}' is missing");
        skip_space(r);
    }
    return value_none();
}

static struct value read_array(struct json_reader *r, unsigned depth)
{
    struct list *list = list_new(r->in, 0);
    r->at++;
    skip_space(r);
    if (!list || skip_char(r, ']'))
        return list ? value_list(VALUE_LIST, list) : value_none();
    while (list_add(r->in, list, read_value(r, depth + 1)) && interp_ok(r->in)) {
        skip_space(r);
        if (skip_char(r, ']'))
            return value_list(VALUE_LIST, list);
        if (!skip_char(r, ','))
            return fail(r, "',' or ']' is missing");
    }
    return value_none();
}

static struct value read_value(struct json_reader *r, unsigned depth)
{
    if (r->in->failed || !interp_step(r->in, 1))
        return value_none();
    if (depth > CHAT_TEMPLATE_MAX_DEPTH) {
        r->in->failed = true;
        error_field(r->in->err, r->field, "is nested deeper than %d levels",
                    CHAT_TEMPLATE_MAX_DEPTH);
        return value_none();
    }
    skip_space(r);
    switch (peek(r)) {
    case '{':
        return read_object(r, depth);
    case '[':
        return read_array(r, depth);
    case '"':
        return read_string(r);
    default:
        return read_word(r);
    }
}

struct value json_text_value(struct interp *in, const char *field, const char *json, size_t n_bytes,
                             bool unique)
{
    struct json_reader r = {
        .in = in, .field = field, .text = json, .n_bytes = n_bytes, .unique = unique};
    size_t wrong;
    if (in->failed)
        return value_none();
    if (!utf8_valid(json, n_bytes, &wrong)) {
        r.at = wrong;
        return fail(&r, "the text is not UTF-8");
    }
    struct value v = read_value(&r, 0);
    skip_space(&r);
    if (!in->failed && r.at < n_bytes)
        return fail(&r, "unexpected text after the value");
    return v;
}
