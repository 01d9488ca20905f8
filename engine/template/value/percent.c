/* Python's "text" % values, also for the format filter. */
#include "engine/template/value/percent.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

enum { MAX_WIDTH = 4096 };

struct spec {
    char flags[8];
    int width, precision; /* precision < 0: not given */
    char type;
    struct value key; /* UNSET: positional */
};

static size_t parse_number(struct interp *in, const struct text *f, size_t i, int *out)
{
    int n = 0;
    for (; i < f->n_bytes && isdigit((unsigned char)f->data[i]); i++) {
        n = n * 10 + (f->data[i] - '0');
        if (n > MAX_WIDTH) {
            interp_fail(in, "format width is over %d", MAX_WIDTH);
            return f->n_bytes;
        }
    }
    *out = n;
    return i;
}

/* Parses the spec after the '%' at i. Returns the position after it. */
static size_t parse_spec(struct interp *in, const struct text *f, size_t i, struct spec *spec)
{
    *spec = (struct spec){.precision = -1};
    if (i < f->n_bytes && f->data[i] == '(') {
        const char *end = memchr(f->data + i, ')', f->n_bytes - i);
        if (!end) {
            interp_fail(in, "format key has no ')'");
            return f->n_bytes;
        }
        spec->key = text_part(in, f, i + 1, (size_t)(end - f->data));
        i = (size_t)(end - f->data) + 1;
    }
    size_t n_flags = 0;
    while (i < f->n_bytes && strchr("-+ #0", f->data[i]) && f->data[i] && n_flags < 7)
        spec->flags[n_flags++] = f->data[i++];
    i = parse_number(in, f, i, &spec->width);
    if (i < f->n_bytes && f->data[i] == '.')
        i = parse_number(in, f, i + 1, &spec->precision);
    if (i >= f->n_bytes) {
        interp_fail(in, "incomplete format");
        return f->n_bytes;
    }
    spec->type = f->data[i];
    return i + 1;
}

static void write_padded(struct interp *in, const struct spec *spec, const struct text *text)
{
    size_t n_chars = text->n_chars, n_bytes = text->n_bytes;
    if (spec->precision >= 0 && (size_t)spec->precision < n_chars) {
        n_chars = (size_t)spec->precision;
        n_bytes = text_offset(text, n_chars);
    }
    bool left = strchr(spec->flags, '-') != NULL;
    size_t pad = (size_t)spec->width > n_chars ? (size_t)spec->width - n_chars : 0;
    for (size_t i = 0; !left && i < pad; i++)
        interp_write(in, " ", 1);
    interp_write(in, text->data, n_bytes);
    for (size_t i = 0; left && i < pad; i++)
        interp_write(in, " ", 1);
}

static void write_number(struct interp *in, const struct spec *spec, struct value v)
{
    char format[32], text[MAX_WIDTH * 2 + 512];
    bool integer = strchr("diuxXo", spec->type) != NULL;
    if (v.type == VALUE_BIG && strchr("diu", spec->type) && spec->precision < 0 &&
        !strpbrk(spec->flags, "+ 0")) {
        write_padded(in, spec, v.u.text);
        return;
    }
    if (v.type == VALUE_BIG) {
        interp_fail(in, "%%%c: number is outside 64 bits", spec->type);
        return;
    }
    if (!value_is_number(v)) {
        interp_fail(in, "%%%c needs a number, not '%s'", spec->type, value_type_name(v));
        return;
    }
    if (integer && v.type == VALUE_FLOAT && !(v.u.real > -9e18 && v.u.real < 9e18)) {
        interp_fail(in, "%%%c: number is outside 64 bits", spec->type);
        return;
    }
    long long i = v.type == VALUE_FLOAT ? (long long)v.u.real : (long long)value_integer(v);
    bool negative = integer && i < 0 && strchr("xXo", spec->type) != NULL;
    char type = spec->type == 'i' || spec->type == 'u' ? 'd' : spec->type;
    if (negative) {
        interp_fail(in, "%%%c of a negative number is not supported", spec->type);
        return;
    }
    int precision = spec->precision >= 0 ? spec->precision : integer ? 1 : 6;
    snprintf(format, sizeof(format), "%%%s*.*%s%c", spec->flags, integer ? "ll" : "", type);
    /* in C, a precision disables the zero flag for integers */
    if (integer && spec->precision < 0)
        snprintf(format, sizeof(format), "%%%s*ll%c", spec->flags, type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (integer && spec->precision < 0)
        snprintf(text, sizeof(text), format, spec->width, i);
    else if (integer)
        snprintf(text, sizeof(text), format, spec->width, precision, i);
    else
        snprintf(text, sizeof(text), format, spec->width, precision, value_real(v));
#pragma GCC diagnostic pop
    interp_write_str(in, text);
}

/* `escapes`: the format is markup, so arguments are escaped. */
static void write_spec(struct interp *in, const struct spec *spec, struct value v, bool escapes)
{
    struct spec plain = *spec;
    switch (spec->type) {
    case 's':
        write_padded(in, spec, value_to_text(in, escapes ? text_escape(in, v) : v));
        return;
    case 'r':
    case 'a': {
        size_t mark = interp_capture_begin(in);
        value_write_repr(in, v);
        struct value text = interp_capture_end(in, mark);
        if (escapes)
            text = text_escape(in, text);
        if (text.type == VALUE_STRING)
            write_padded(in, spec, text.u.text);
        return;
    }
    case 'c':
        plain.precision = -1;
        if (escapes)
            interp_fail(in, "%%c does not work in markup");
        else if (v.type == VALUE_STRING && v.u.text->n_chars == 1)
            write_padded(in, &plain, v.u.text);
        else if (value_is_integral(v) && value_integer(v) > 0 && value_integer(v) < 0xD800)
            interp_write_char(in, (uint32_t)value_integer(v));
        else
            interp_fail(in, "%%c needs one character");
        return;
    default:
        break;
    }
    if (escapes && spec->type && strchr("xXo", spec->type))
        interp_fail(in, "%%%c does not work in markup", spec->type);
    else if (spec->type && strchr("diuxXoeEfFgG", spec->type))
        write_number(in, spec, v);
    else
        interp_fail(in, "unsupported format character '%c'",
                    isprint((unsigned char)spec->type) ? spec->type : '?');
}

struct value percent_format(struct interp *in, struct value format_value, const struct value *items,
                            size_t n_items, const struct dict *mapping)
{
    const struct text *format = format_value.u.text;
    bool escapes = value_is_markup(format_value);
    size_t mark = interp_capture_begin(in), i_item = 0;
    bool by_key = false;
    for (size_t i = 0; i < format->n_bytes && interp_step(in, 1);) {
        const char *next = memchr(format->data + i, '%', format->n_bytes - i);
        size_t stop = next ? (size_t)(next - format->data) : format->n_bytes;
        interp_write(in, format->data + i, stop - i);
        if (!next)
            break;
        struct spec spec;
        i = parse_spec(in, format, stop + 1, &spec);
        if (in->failed)
            break;
        if (spec.type == '%') {
            interp_write(in, "%", 1);
        } else if (spec.key.type == VALUE_STRING) {
            by_key = true;
            const struct value *item = mapping ? dict_get(in, mapping, spec.key, NULL) : NULL;
            if (item)
                write_spec(in, &spec, *item, escapes);
            else
                interp_fail(in, "format key is not in the mapping");
        } else if (i_item < n_items) {
            write_spec(in, &spec, items[i_item++], escapes);
        } else {
            interp_fail(in, "not enough arguments for format string");
        }
    }
    if (!by_key && !mapping && i_item < n_items)
        interp_fail(in, "not all arguments converted during string formatting");
    return value_marked(interp_capture_end(in, mark), escapes);
}
