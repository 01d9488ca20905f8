/* Writes values as text, like Python's str, repr and json.dumps. */
#include "engine/template/value/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

static void put_char(char out[FLOAT_REPR_BYTES], size_t *n, char ch)
{
    if (*n + 1 < FLOAT_REPR_BYTES)
        out[(*n)++] = ch;
}

/* Writes d.ddde+XX. */
static void layout_scientific(const char *digits, int exponent, char out[FLOAT_REPR_BYTES],
                              size_t *n)
{
    put_char(out, n, *digits++);
    if (*digits)
        put_char(out, n, '.');
    while (*digits)
        put_char(out, n, *digits++);
    put_char(out, n, 'e');
    put_char(out, n, exponent < 0 ? '-' : '+');
    exponent = abs(exponent);
    if (exponent >= 100)
        put_char(out, n, (char)('0' + exponent / 100));
    put_char(out, n, (char)('0' + exponent / 10 % 10));
    put_char(out, n, (char)('0' + exponent % 10));
}

/* Writes ddd.ddd, with at least one digit on both sides. */
static void layout_plain(const char *digits, int exponent, char out[FLOAT_REPR_BYTES], size_t *n)
{
    int n_digits = (int)strlen(digits);
    if (exponent < 0) {
        put_char(out, n, '0');
        put_char(out, n, '.');
        for (int i = exponent + 1; i < 0; i++)
            put_char(out, n, '0');
        while (*digits)
            put_char(out, n, *digits++);
        return;
    }
    for (int i = 0; i <= exponent || i < n_digits; i++) {
        if (i == exponent + 1)
            put_char(out, n, '.');
        put_char(out, n, i < n_digits ? digits[i] : '0');
    }
    if (n_digits <= exponent + 1) {
        put_char(out, n, '.');
        put_char(out, n, '0');
    }
}

/* Writes the shortest digits that read back as x, in Python's layout: scientific for exponents
 * below -4 or from 16 on. */
void print_float(double x, char out[FLOAT_REPR_BYTES])
{
    if (!isfinite(x)) {
        snprintf(out, FLOAT_REPR_BYTES, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    char text[FLOAT_REPR_BYTES], digits[FLOAT_REPR_BYTES] = {0};
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, x);
        double back = strtod(text, NULL);
        if (back <= x && back >= x)
            break;
    }
    size_t n = 0, n_digits = 0;
    const char *c = text;
    if (*c == '-')
        put_char(out, &n, *c++);
    for (; *c && *c != 'e'; c++)
        if (*c != '.')
            digits[n_digits++] = *c;
    int exponent = *c ? (int)strtol(c + 1, NULL, 10) : 0;
    if (exponent < -4 || exponent >= 16)
        layout_scientific(digits, exponent, out, &n);
    else
        layout_plain(digits, exponent, out, &n);
    out[n] = '\0';
}

static void write_text_repr(struct interp *in, const struct text *text)
{
    bool has_single = memchr(text->data, '\'', text->n_bytes) != NULL;
    bool has_double = memchr(text->data, '"', text->n_bytes) != NULL;
    uint32_t quote = has_single && !has_double ? '"' : '\'';
    char escape[16];
    interp_write_char(in, quote);
    interp_step(in, text->n_bytes / 8);
    for (size_t i = 0; i < text->n_bytes && interp_ok(in);) {
        uint32_t cp;
        size_t n = utf8_decode(text->data + i, text->n_bytes - i, &cp);
        if (!n)
            break;
        if (cp == quote || cp == '\\')
            snprintf(escape, sizeof(escape), "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(escape, sizeof(escape), "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (unicode_is_printable(cp))
            escape[0] = '\0';
        else
            snprintf(escape, sizeof(escape),
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
        if (escape[0])
            interp_write_str(in, escape);
        else
            interp_write(in, text->data + i, n);
        i += n;
    }
    interp_write_char(in, quote);
}

static void write_repr(struct interp *in, struct value v, unsigned depth);

static bool check_depth(struct interp *in, unsigned depth)
{
    if (depth > CHAT_TEMPLATE_MAX_DEPTH)
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "data is nested deeper than %d levels",
                           CHAT_TEMPLATE_MAX_DEPTH);
    return interp_ok(in) && interp_step(in, 1);
}

static void write_items(struct interp *in, const struct list *list, const char *open,
                        const char *close, unsigned depth)
{
    interp_write_str(in, open);
    for (size_t i = 0; i < list->n && interp_ok(in); i++) {
        if (i)
            interp_write_str(in, ", ");
        write_repr(in, list->items[i], depth + 1);
    }
    interp_write_str(in, close);
}

static void write_dict(struct interp *in, const struct dict *dict, unsigned depth)
{
    interp_write_str(in, "{");
    for (size_t i = 0; i < dict->n && interp_ok(in); i++) {
        if (i)
            interp_write_str(in, ", ");
        write_repr(in, dict->entries[i].key, depth + 1);
        interp_write_str(in, ": ");
        write_repr(in, dict->entries[i].value, depth + 1);
    }
    interp_write_str(in, "}");
}

static void write_range(struct interp *in, const struct range *range)
{
    char text[96];
    long long start = range->start, step = range->step;
    long long stop = range->stop;
    if (step == 1)
        snprintf(text, sizeof(text), "range(%lld, %lld)", start, stop);
    else
        snprintf(text, sizeof(text), "range(%lld, %lld, %lld)", start, stop, step);
    interp_write_str(in, text);
}

static void write_number(struct interp *in, struct value v)
{
    char text[FLOAT_REPR_BYTES];
    if (v.type == VALUE_BIG) {
        interp_write(in, v.u.text->data, v.u.text->n_bytes);
        return;
    }
    if (v.type == VALUE_FLOAT)
        print_float(v.u.real, text);
    else
        snprintf(text, sizeof(text), "%lld", (long long)v.u.integer);
    interp_write_str(in, text);
}

static void write_repr(struct interp *in, struct value v, unsigned depth)
{
    if (!check_depth(in, depth))
        return;
    switch ((enum value_type)v.type) {
    case VALUE_UNSET:
    case VALUE_UNDEFINED:
        interp_write_str(in, "Undefined");
        return;
    case VALUE_NONE:
        interp_write_str(in, "None");
        return;
    case VALUE_BOOL:
        interp_write_str(in, v.u.boolean ? "True" : "False");
        return;
    case VALUE_INT:
    case VALUE_BIG:
    case VALUE_FLOAT:
        write_number(in, v);
        return;
    case VALUE_STRING:
        interp_write_str(in, value_is_markup(v) ? "Markup(" : "");
        write_text_repr(in, v.u.text);
        interp_write_str(in, value_is_markup(v) ? ")" : "");
        return;
    case VALUE_LIST:
        write_items(in, v.u.list, "[", "]", depth);
        return;
    case VALUE_TUPLE:
        write_items(in, v.u.list, "(", v.u.list->n == 1 ? ",)" : ")", depth);
        return;
    case VALUE_VIEW:
        write_items(in, v.u.list,
                    v.aux == 'k'   ? "dict_keys(["
                    : v.aux == 'v' ? "dict_values(["
                                   : "dict_items([",
                    "])", depth);
        return;
    case VALUE_RANGE:
        write_range(in, v.u.range);
        return;
    case VALUE_DICT:
        write_dict(in, v.u.dict, depth);
        return;
    case VALUE_NAMESPACE:
        interp_write_str(in, "<Namespace ");
        write_dict(in, v.u.dict, depth);
        interp_write_str(in, ">");
        return;
    default:
        interp_write_str(in, "<");
        interp_write_str(in, value_type_name(v));
        interp_write_str(in, ">");
        return;
    }
}

void value_write(struct interp *in, struct value v)
{
    if (v.type == VALUE_STRING)
        interp_write(in, v.u.text->data, v.u.text->n_bytes);
    else if (!value_is_undefined(v))
        write_repr(in, v, 0);
}

void value_write_repr(struct interp *in, struct value v)
{
    write_repr(in, v, 0);
}

const struct text *value_to_text(struct interp *in, struct value v)
{
    static const struct text empty = {"", 0, 0, NULL};
    if (v.type == VALUE_STRING)
        return v.u.text;
    if (value_is_undefined(v))
        return &empty;
    size_t mark = interp_capture_begin(in);
    value_write(in, v);
    struct value text = interp_capture_end(in, mark);
    return text.type == VALUE_STRING ? text.u.text : &empty;
}

static void write_json_text(struct interp *in, const struct text *text, bool ensure_ascii)
{
    char escape[32];
    interp_write_str(in, "\"");
    interp_step(in, text->n_bytes / 8);
    for (size_t i = 0; i < text->n_bytes && interp_ok(in);) {
        uint32_t cp;
        size_t n = utf8_decode(text->data + i, text->n_bytes - i, &cp);
        if (!n)
            break;
        const char *letters = "\"\\\n\r\t\b\f", *names = "\"\\nrtbf";
        const char *found = cp && cp < 0x80 ? strchr(letters, (int)cp) : NULL;
        escape[0] = '\0';
        if (found)
            snprintf(escape, sizeof(escape), "\\%c", names[found - letters]);
        else if (cp < 0x20 || (ensure_ascii && cp >= 0x7F && cp < 0x10000))
            snprintf(escape, sizeof(escape), "\\u%04x", cp);
        else if (ensure_ascii && cp >= 0x10000)
            snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                     0xDC00 + ((cp - 0x10000) & 0x3FF));
        if (escape[0])
            interp_write_str(in, escape);
        else
            interp_write(in, text->data + i, n);
        i += n;
    }
    interp_write_str(in, "\"");
}

static void write_json(struct interp *in, struct value v, const struct json_style *style,
                       unsigned depth);

static void json_newline(struct interp *in, const struct json_style *style, unsigned depth)
{
    if (style->indent < 0)
        return;
    interp_write_str(in, "\n");
    for (unsigned i = 0; i < depth && interp_ok(in); i++) {
        for (int j = 0; j < style->indent; j++)
            interp_write(in, " ", 1);
        if (style->indent_text)
            interp_write(in, style->indent_text->data, style->indent_text->n_bytes);
    }
}

static void write_json_scalar(struct interp *in, struct value v)
{
    if (v.type == VALUE_NONE)
        interp_write_str(in, "null");
    else if (v.type == VALUE_BOOL)
        interp_write_str(in, v.u.boolean ? "true" : "false");
    else if (v.type == VALUE_FLOAT && !isfinite(v.u.real))
        interp_write_str(in, isnan(v.u.real) ? "NaN" : v.u.real < 0 ? "-Infinity" : "Infinity");
    else
        write_number(in, v);
}

static void write_json_list(struct interp *in, const struct list *list,
                            const struct json_style *style, unsigned depth)
{
    interp_write_str(in, "[");
    for (size_t i = 0; i < list->n && interp_ok(in); i++) {
        if (i)
            interp_write(in, style->item_separator.data, style->item_separator.n_bytes);
        json_newline(in, style, depth + 1);
        write_json(in, list->items[i], style, depth + 1);
    }
    if (list->n)
        json_newline(in, style, depth);
    interp_write_str(in, "]");
}

static bool is_json_key(struct value key)
{
    return key.type == VALUE_STRING || key.type == VALUE_NONE || key.type == VALUE_BIG ||
           value_is_number(key);
}

static void write_json_key(struct interp *in, struct value key, const struct json_style *style)
{
    if (key.type == VALUE_STRING) {
        write_json_text(in, key.u.text, style->ensure_ascii);
        return;
    }
    interp_write_str(in, "\"");
    write_json_scalar(in, key);
    interp_write_str(in, "\"");
}

/* Entry indices in output order. */
static size_t *json_order(struct interp *in, const struct dict *dict, bool sorted)
{
    size_t *order = interp_alloc(in, dict->n ? dict->n : 1, sizeof(*order));
    for (size_t i = 0; order && i < dict->n; i++) {
        size_t j = i;
        int sign = 0;
        while (sorted && j > 0 &&
               value_order(in, dict->entries[order[j - 1]].key, dict->entries[i].key, &sign) &&
               sign > 0) {
            order[j] = order[j - 1];
            j--;
        }
        order[j] = i;
    }
    return interp_ok(in) ? order : NULL;
}

static void write_json_dict(struct interp *in, const struct dict *dict,
                            const struct json_style *style, unsigned depth)
{
    size_t *order = json_order(in, dict, style->sort_keys);
    if (!order)
        return;
    interp_write_str(in, "{");
    for (size_t i = 0; i < dict->n && interp_ok(in); i++) {
        const struct dict_entry *entry = &dict->entries[order[i]];
        if (!is_json_key(entry->key)) {
            interp_fail(in, "JSON keys cannot be of type '%s'", value_type_name(entry->key));
            return;
        }
        if (i)
            interp_write(in, style->item_separator.data, style->item_separator.n_bytes);
        json_newline(in, style, depth + 1);
        write_json_key(in, entry->key, style);
        interp_write(in, style->key_separator.data, style->key_separator.n_bytes);
        write_json(in, entry->value, style, depth + 1);
    }
    if (dict->n)
        json_newline(in, style, depth);
    interp_write_str(in, "}");
}

static void write_json(struct interp *in, struct value v, const struct json_style *style,
                       unsigned depth)
{
    if (!check_depth(in, depth))
        return;
    switch ((enum value_type)v.type) {
    case VALUE_NONE:
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_BIG:
    case VALUE_FLOAT:
        write_json_scalar(in, v);
        return;
    case VALUE_STRING:
        write_json_text(in, v.u.text, style->ensure_ascii);
        return;
    case VALUE_LIST:
    case VALUE_TUPLE:
        write_json_list(in, v.u.list, style, depth);
        return;
    case VALUE_DICT:
        write_json_dict(in, v.u.dict, style, depth);
        return;
    default:
        interp_fail(in, "Object of type %s is not JSON serializable", value_type_name(v));
        return;
    }
}

void value_write_json(struct interp *in, struct value v, const struct json_style *style)
{
    write_json(in, v, style, 0);
}
