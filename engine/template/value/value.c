#include "engine/template/value/value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash_map.h"
#include "base/utf8.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"

enum { FLOAT_DIGITS_BYTES = 320 }; /* the largest double has 309 digits */

const char *value_type_name(struct value v)
{
    static const char *const names[] = {
        [VALUE_UNSET] = "Undefined",
        [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",
        [VALUE_BIG] = "int",
        [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",
        [VALUE_TUPLE] = "tuple",
        [VALUE_VIEW] = "dict view",
        [VALUE_ITERATOR] = "generator",
        [VALUE_RANGE] = "range",
        [VALUE_DICT] = "dict",
        [VALUE_NAMESPACE] = "Namespace",
        [VALUE_LOOP] = "LoopContext",
        [VALUE_BUILTIN] = "function",
        [VALUE_METHOD] = "method",
        [VALUE_MACRO] = "Macro",
        [VALUE_CYCLER] = "Cycler",
        [VALUE_JOINER] = "Joiner",
    };
    return names[v.type];
}

struct value value_undefined(const struct text *name, uint8_t owner)
{
    return (struct value){.type = VALUE_UNDEFINED, .aux = owner, .u.text = name};
}

bool value_truth(struct value v)
{
    switch ((enum value_type)v.type) {
    case VALUE_UNSET:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.u.boolean;
    case VALUE_INT:
        return v.u.integer != 0;
    case VALUE_FLOAT:
        return fpclassify(v.u.real) != FP_ZERO;
    case VALUE_STRING:
        return v.u.text->n_bytes > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        return v.u.list->n > 0;
    case VALUE_RANGE:
        return v.u.range->n > 0;
    case VALUE_DICT:
        return v.u.dict->n > 0;
    default:
        return true;
    }
}

struct value value_from_digits(struct interp *in, const char *digits, size_t n)
{
    char buf[24];
    if (n < sizeof(buf)) {
        memcpy(buf, digits, n);
        buf[n] = '\0';
        errno = 0;
        int64_t i = strtoll(buf, NULL, 10);
        if (errno == 0)
            return value_int(i);
    }
    char *copy = interp_alloc(in, n + 1, 1); /* strtod() needs a NUL */
    if (!copy)
        return value_of_type(VALUE_UNSET);
    memcpy(copy, digits, n);
    struct value v = text_wrap(in, copy, n, NULL);
    if (v.type == VALUE_STRING)
        v.type = VALUE_BIG;
    return v;
}

/* Compares decimal integers without leading zeros: by sign, length, digits. */
static int order_digits(const struct text *a, const struct text *b)
{
    bool a_negative = a->data[0] == '-', b_negative = b->data[0] == '-';
    if (a_negative != b_negative)
        return a_negative ? -1 : 1;
    int sign = a->n_bytes != b->n_bytes ? (a->n_bytes > b->n_bytes ? 1 : -1)
                                        : memcmp(a->data, b->data, a->n_bytes);
    return a_negative ? -sign : sign;
}

/* Compares an integer outside 64 bits with any number: < 0, 0, > 0, or 2 if b is NaN. */
static int order_big(struct value a, struct value b)
{
    char buf[FLOAT_DIGITS_BYTES];
    int sign = a.u.text->data[0] == '-' ? -1 : 1;
    if (b.type == VALUE_BIG)
        return order_digits(a.u.text, b.u.text);
    if (b.type != VALUE_FLOAT || fabs(b.u.real) < 9.2e18)
        return sign;
    if (isnan(b.u.real))
        return 2;
    if (isinf(b.u.real))
        return b.u.real > 0 ? -1 : 1;
    int n = snprintf(buf, sizeof(buf), "%.0f", floor(b.u.real));
    const struct text digits = {buf, (size_t)n, (size_t)n, NULL};
    return order_digits(a.u.text, &digits);
}

/* Compares exactly, as Python does: an integer above 2^53 differs from the double to which it
 * rounds. */
static int order_numbers(struct value a, struct value b)
{
    if (a.type == VALUE_BIG)
        return order_big(a, b);
    if (b.type == VALUE_BIG) {
        int order = order_big(b, a);
        return order == 2 ? 2 : -order;
    }
    if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT) {
        int64_t x = value_integer(a), y = value_integer(b);
        return (x > y) - (x < y);
    }
    double x = value_real(a), y = value_real(b);
    if (isnan(x) || isnan(y))
        return 2;
    if (x < y || x > y || (a.type == VALUE_FLOAT && b.type == VALUE_FLOAT))
        return (x > y) - (x < y);
    double real = a.type == VALUE_FLOAT ? x : y;
    if (real >= 9223372036854775808.0) /* 2^63; integers near it round to it */
        return a.type == VALUE_FLOAT ? 1 : -1;
    int64_t i = a.type == VALUE_FLOAT ? (int64_t)x : value_integer(a);
    int64_t j = b.type == VALUE_FLOAT ? (int64_t)y : value_integer(b);
    return (i > j) - (i < j);
}

static bool is_ordered_number(struct value v)
{
    return value_is_number(v) || v.type == VALUE_BIG;
}

static bool equal(struct interp *in, struct value a, struct value b, unsigned depth);

static bool equal_lists(struct interp *in, const struct list *a, const struct list *b,
                        unsigned depth)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!equal(in, a->items[i], b->items[i], depth + 1))
            return false;
    return true;
}

static bool equal_dicts(struct interp *in, const struct dict *a, const struct dict *b,
                        unsigned depth)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct value *other = dict_get(in, b, a->entries[i].key, NULL);
        if (!other || !equal(in, a->entries[i].value, *other, depth + 1))
            return false;
    }
    return true;
}

static bool equal(struct interp *in, struct value a, struct value b, unsigned depth)
{
    if (depth > CHAT_TEMPLATE_MAX_DEPTH) {
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "data is nested deeper than %d levels",
                           CHAT_TEMPLATE_MAX_DEPTH);
        return false;
    }
    if (!interp_step(in, 1))
        return false;
    if (is_ordered_number(a) && is_ordered_number(b))
        return order_numbers(a, b) == 0;
    if (value_is_undefined(a) && value_is_undefined(b))
        return true;
    if (a.type != b.type)
        return false;
    switch ((enum value_type)a.type) {
    case VALUE_NONE:
        return true;
    case VALUE_STRING:
        return interp_step(in, a.u.text->n_bytes / 256) && text_equal(a.u.text, b.u.text);
    case VALUE_LIST:
    case VALUE_TUPLE:
        return equal_lists(in, a.u.list, b.u.list, depth);
    case VALUE_RANGE:
        return a.u.range->n == b.u.range->n &&
               (!a.u.range->n || (a.u.range->start == b.u.range->start &&
                                  (a.u.range->n == 1 || a.u.range->step == b.u.range->step)));
    case VALUE_DICT:
        return equal_dicts(in, a.u.dict, b.u.dict, depth);
    default:
        return a.u.list == b.u.list;
    }
}

bool value_equal(struct interp *in, struct value a, struct value b)
{
    return equal(in, a, b, 0);
}

static int order_texts(const struct text *a, const struct text *b)
{
    size_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int sign = memcmp(a->data, b->data, n); /* UTF-8 order is code point order */
    if (sign)
        return sign < 0 ? -1 : 1;
    return (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

bool value_order(struct interp *in, struct value a, struct value b, int *out_order)
{
    if (!interp_step(in, 1))
        return false;
    if (is_ordered_number(a) && is_ordered_number(b)) {
        *out_order = order_numbers(a, b);
        return true;
    }
    if (a.type == VALUE_STRING && b.type == VALUE_STRING) {
        *out_order = order_texts(a.u.text, b.u.text);
        return interp_step(in, a.u.text->n_bytes / 256);
    }
    if (a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE)) {
        const struct list *x = a.u.list, *y = b.u.list;
        for (size_t i = 0; i < x->n && i < y->n; i++)
            if (!value_equal(in, x->items[i], y->items[i])) {
                if (++in->eval_depth > MAX_EVAL_DEPTH)
                    interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "data is nested too deeply");
                bool ok = interp_ok(in) && value_order(in, x->items[i], y->items[i], out_order);
                in->eval_depth--;
                return ok;
            }
        *out_order = (x->n > y->n) - (x->n < y->n);
        return interp_ok(in);
    }
    interp_fail(in, "cannot compare '%s' and '%s'", value_type_name(a), value_type_name(b));
    return false;
}
