/* Attributes, subscripts, arithmetic and comparisons, as in Python and in Jinja's sandbox. */
#include "engine/template/operators.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/template/loop.h"
#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/percent.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

struct value operator_getattr(struct interp *in, struct value v, const struct text *name)
{
    if (value_is_undefined(v))
        return in->failed ? v : interp_fail_undefined(in, v);
    if (v.type == VALUE_LOOP)
        return loop_getattr(in, v.u.loop, name);
    /* pair of the groupby filter */
    if (v.type == VALUE_TUPLE && v.aux == 'g' && v.u.list->n == 2) {
        if (text_equal_str(name, "grouper"))
            return v.u.list->items[0];
        if (text_equal_str(name, "list"))
            return v.u.list->items[1];
    }
    if (v.type == VALUE_CYCLER && text_equal_str(name, "current"))
        return v.u.list->items[v.u.list->pos];
    const struct builtin *builtin = builtin_method(v, name);
    if (builtin) {
        struct method *method = interp_alloc(in, 1, sizeof(*method));
        if (!method)
            return value_of_type(VALUE_UNSET);
        *method = (struct method){v, builtin};
        return (struct value){.type = VALUE_METHOD, .u.method = method};
    }
    if (v.type == VALUE_DICT || v.type == VALUE_NAMESPACE) {
        const struct value *item = dict_get(in, v.u.dict, value_text(name), NULL);
        if (item)
            return *item;
    }
    return value_undefined(name, v.type);
}

/* Resolves a Python index into n items; negative indices count from the end. Returns false if out
 * of range. */
static bool resolve_index(struct value key, size_t n, size_t *out)
{
    int64_t i = value_integer(key);
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return false;
    *out = (size_t)i;
    return true;
}

static struct value item_at(struct interp *in, struct value v, struct value key)
{
    size_t i;
    struct value missing = value_undefined(NULL, 0);
    if (v.type == VALUE_LIST || v.type == VALUE_TUPLE)
        return resolve_index(key, v.u.list->n, &i) ? v.u.list->items[i] : missing;
    if (v.type == VALUE_RANGE)
        return resolve_index(key, v.u.range->n, &i)
                   ? value_int(v.u.range->start + (int64_t)i * v.u.range->step)
                   : missing;
    if (v.type == VALUE_STRING) {
        if (!resolve_index(key, v.u.text->n_chars, &i))
            return missing;
        size_t begin = text_offset(v.u.text, i), end = begin + 1;
        while (end < v.u.text->n_bytes && ((unsigned char)v.u.text->data[end] & 0xC0) == 0x80)
            end++;
        return interp_step(in, v.u.text->n_chars == v.u.text->n_bytes ? 0 : begin / 64)
                   ? value_marked(text_part(in, v.u.text, begin, end), value_is_markup(v))
                   : missing;
    }
    return missing;
}

struct value operator_getitem(struct interp *in, struct value v, struct value key)
{
    if (value_is_undefined(v))
        return in->failed ? v : interp_fail_undefined(in, v);
    if (v.type == VALUE_DICT) {
        const struct value *item = dict_get(in, v.u.dict, key, NULL);
        if (item)
            return *item;
    }
    if (value_is_integral(key) && v.type != VALUE_DICT)
        return item_at(in, v, key);
    if (key.type == VALUE_STRING)
        return operator_getattr(in, v, key.u.text);
    return value_undefined(NULL, 0);
}

/* Bounds of a slice over n items, like Python's slice.indices. */
struct slice_bounds {
    int64_t start, stop, step;
};

static int64_t clamp_bound(struct value v, int64_t n, bool backwards, int64_t fallback)
{
    if (!value_is_integral(v))
        return fallback;
    int64_t i = value_integer(v), low = backwards ? -1 : 0, high = backwards ? n - 1 : n;
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static bool slice_bounds(struct interp *in, int64_t n, struct value start, struct value stop,
                         struct value step, struct slice_bounds *out)
{
    const struct value parts[] = {start, stop, step};
    for (size_t i = 0; i < 3; i++)
        if (parts[i].type != VALUE_NONE && !value_is_integral(parts[i])) {
            interp_fail(in, "slice bounds must be integers or none, not '%s'",
                        value_type_name(parts[i]));
            return false;
        }
    out->step = value_is_integral(step) ? value_integer(step) : 1;
    if (!out->step || out->step == INT64_MIN) {
        interp_fail(in, "slice step cannot be %s", out->step ? "that small" : "zero");
        return false;
    }
    bool backwards = out->step < 0;
    out->start = clamp_bound(start, n, backwards, backwards ? n - 1 : 0);
    out->stop = clamp_bound(stop, n, backwards, backwards ? -1 : n);
    return true;
}

static size_t slice_count(const struct slice_bounds *b)
{
    uint64_t span = 0, step = b->step > 0 ? (uint64_t)b->step : (uint64_t)-b->step;
    if (b->step > 0 && b->stop > b->start)
        span = (uint64_t)(b->stop - b->start);
    if (b->step < 0 && b->start > b->stop)
        span = (uint64_t)(b->start - b->stop);
    return span ? (size_t)((span - 1) / step + 1) : 0;
}

static struct value slice_text(struct interp *in, const struct text *text,
                               const struct slice_bounds *b)
{
    size_t n = slice_count(b);
    if (!n)
        return text_new(in, "", 0);
    if (!interp_step(in, text->n_chars == text->n_bytes ? 0 : text->n_bytes / 64))
        return value_of_type(VALUE_UNSET);
    if (b->step == 1)
        return text_part(in, text, text_offset(text, (size_t)b->start),
                         text_offset(text, (size_t)b->stop));
    size_t *offsets = interp_alloc(in, text->n_chars + 1, sizeof(*offsets));
    if (!offsets)
        return value_of_type(VALUE_UNSET);
    size_t i_char = 0;
    for (size_t i = 0; i < text->n_bytes; i++)
        if (((unsigned char)text->data[i] & 0xC0) != 0x80)
            offsets[i_char++] = i;
    offsets[i_char] = text->n_bytes;
    size_t mark = interp_capture_begin(in);
    for (size_t i = 0; i < n && interp_step(in, 1); i++) {
        size_t at = (size_t)(b->start + (int64_t)i * b->step);
        interp_write(in, text->data + offsets[at], offsets[at + 1] - offsets[at]);
    }
    return interp_capture_end(in, mark);
}

static struct value slice_range(struct interp *in, const struct range *range,
                                const struct slice_bounds *b)
{
    struct range *part = interp_alloc(in, 1, sizeof(*part));
    int64_t start, stop, step;
    if (!part)
        return value_of_type(VALUE_UNSET);
    if (__builtin_mul_overflow(range->step, b->step, &step) ||
        __builtin_mul_overflow(range->step, b->start, &start) ||
        __builtin_add_overflow(range->start, start, &start) ||
        __builtin_mul_overflow(range->step, b->stop, &stop) ||
        __builtin_add_overflow(range->start, stop, &stop) || step == INT64_MIN)
        return interp_fail(in, "slice of a range is outside 64 bits");
    *part = (struct range){start, stop, step, slice_count(b)};
    return (struct value){.type = VALUE_RANGE, .u.range = part};
}

struct value operator_slice(struct interp *in, struct value v, struct value start,
                            struct value stop, struct value step)
{
    struct slice_bounds b;
    if (value_is_undefined(v))
        return in->failed ? v : interp_fail_undefined(in, v);
    if (v.type != VALUE_STRING && v.type != VALUE_LIST && v.type != VALUE_TUPLE &&
        v.type != VALUE_RANGE)
        return interp_fail(in, "'%s' object cannot be sliced", value_type_name(v));
    size_t n = v.type == VALUE_STRING  ? v.u.text->n_chars
               : v.type == VALUE_RANGE ? (size_t)v.u.range->n
                                       : v.u.list->n;
    if (!slice_bounds(in, (int64_t)n, start, stop, step, &b))
        return value_of_type(VALUE_UNSET);
    if (v.type == VALUE_STRING)
        return value_marked(slice_text(in, v.u.text, &b), value_is_markup(v));
    if (v.type == VALUE_RANGE)
        return slice_range(in, v.u.range, &b);
    size_t n_taken = slice_count(&b);
    struct list *list = list_new(in, n_taken);
    for (size_t i = 0; list && i < n_taken; i++)
        if (!list_add(in, list, v.u.list->items[b.start + (int64_t)i * b.step]))
            break;
    return list ? value_list((enum value_type)v.type, list) : value_of_type(VALUE_UNSET);
}

static struct value overflow(struct interp *in)
{
    return interp_fail(in, "integer result is outside 64 bits");
}

static struct value divide_floor(struct interp *in, int64_t a, int64_t b, bool remainder)
{
    if (!b)
        return interp_fail(in, "integer division or modulo by zero");
    if (b == -1)
        return remainder ? value_int(0) : a == INT64_MIN ? overflow(in) : value_int(-a);
    int64_t q = a / b, r = a % b;
    if (r && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    return value_int(remainder ? r : q);
}

static struct value power(struct interp *in, int64_t base, int64_t exponent)
{
    if (exponent < 0)
        return base ? value_float(pow((double)base, (double)exponent))
                    : interp_fail(in, "0 cannot be raised to a negative power");
    int64_t result = 1;
    for (int64_t i = 0; i < exponent && result && interp_step(in, 1); i++) {
        if (base == 1 || base == -1) {
            result = base == 1 || exponent % 2 == 0 ? 1 : -1;
            break;
        }
        if (__builtin_mul_overflow(result, base, &result))
            return overflow(in);
    }
    return value_int(result);
}

static struct value integer_op(struct interp *in, enum operator_code op, int64_t a, int64_t b)
{
    int64_t result;
    switch (op) {
    case OP_ADD:
        return __builtin_add_overflow(a, b, &result) ? overflow(in) : value_int(result);
    case OP_SUB:
        return __builtin_sub_overflow(a, b, &result) ? overflow(in) : value_int(result);
    case OP_MUL:
        return __builtin_mul_overflow(a, b, &result) ? overflow(in) : value_int(result);
    case OP_DIV:
        return b ? value_float((double)a / (double)b) : interp_fail(in, "division by zero");
    case OP_FLOORDIV:
    case OP_MOD:
        return divide_floor(in, a, b, op == OP_MOD);
    default:
        return power(in, a, b);
    }
}

static struct value real_op(struct interp *in, enum operator_code op, double a, double b)
{
    bool zero = fpclassify(b) == FP_ZERO;
    if (zero && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return interp_fail(in, "float division by zero");
    switch (op) {
    case OP_ADD:
        return value_float(a + b);
    case OP_SUB:
        return value_float(a - b);
    case OP_MUL:
        return value_float(a * b);
    case OP_DIV:
        return value_float(a / b);
    case OP_POW:
        if (fpclassify(a) == FP_ZERO && b < 0)
            return interp_fail(in, "0.0 cannot be raised to a negative power");
        return value_float(pow(a, b));
    default:
        break;
    }
    double remainder = fmod(a, b);
    if (fpclassify(remainder) != FP_ZERO && (remainder < 0) != (b < 0))
        remainder += b;
    if (op == OP_MOD)
        return value_float(fpclassify(remainder) == FP_ZERO ? copysign(0.0, b) : remainder);
    double quotient = (a - remainder) / b;
    return value_float(fpclassify(quotient) == FP_ZERO ? copysign(0.0, a / b) : round(quotient));
}

static struct value repeat(struct interp *in, struct value v, int64_t times)
{
    if (times < 0)
        times = 0;
    if (v.type == VALUE_STRING) {
        size_t n = v.u.text->n_bytes, total;
        if (__builtin_mul_overflow(n, (size_t)times, &total))
            total = SIZE_MAX / 4;
        char *data = interp_alloc(in, total + 1, 1);
        for (size_t i = 0; data && n && i < total; i += n)
            memcpy(data + i, v.u.text->data, n);
        if (!data || !interp_step(in, total / 64))
            return value_of_type(VALUE_UNSET);
        struct text whole = {data, total, 0, NULL};
        struct text *text = interp_alloc(in, 1, sizeof(*text));
        if (!text)
            return value_of_type(VALUE_UNSET);
        *text = whole;
        text->n_chars = v.u.text->n_chars * (size_t)times;
        return value_marked(value_text(text), value_is_markup(v));
    }
    struct list *list = list_new(in, 0);
    for (int64_t i = 0; i < times && list && v.u.list->n; i++)
        for (size_t j = 0; j < v.u.list->n; j++)
            if (!list_add(in, list, v.u.list->items[j]))
                return value_of_type(VALUE_UNSET);
    return list ? value_list((enum value_type)v.type, list) : value_of_type(VALUE_UNSET);
}

static struct value join_lists(struct interp *in, struct value a, struct value b)
{
    struct list *list = list_new(in, a.u.list->n + b.u.list->n);
    for (size_t i = 0; list && i < a.u.list->n; i++)
        list_add(in, list, a.u.list->items[i]);
    for (size_t i = 0; list && i < b.u.list->n; i++)
        list_add(in, list, b.u.list->items[i]);
    return list ? value_list((enum value_type)a.type, list) : value_of_type(VALUE_UNSET);
}

static bool is_repeatable(struct value v)
{
    return v.type == VALUE_STRING || v.type == VALUE_LIST || v.type == VALUE_TUPLE;
}

static const char *operator_name(enum operator_code op)
{
    static const char *const names[] = {
        [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",  [OP_DIV] = "/",
        [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**",
    };
    return op <= OP_POW && names[op] ? names[op] : "?";
}

static struct value percent(struct interp *in, struct value format, struct value b)
{
    if (b.type == VALUE_TUPLE)
        return percent_format(in, format, b.u.list->items, b.u.list->n, NULL);
    return percent_format(in, format, &b, 1, b.type == VALUE_DICT ? b.u.dict : NULL);
}

/* Adds two texts. If either is markup, the other is escaped and the sum is markup. */
static struct value add_texts(struct interp *in, struct value a, struct value b)
{
    bool is_markup = value_is_markup(a) || value_is_markup(b);
    if (is_markup) {
        a = text_escape(in, a);
        b = text_escape(in, b);
    }
    return in->failed ? a : value_marked(text_concat(in, a.u.text, b.u.text), is_markup);
}

/* Applies an operator if at least one operand is an integer outside 64 bits. The result exists only
 * if the other operand is a double; otherwise the operation overflows. */
static struct value big_op(struct interp *in, enum operator_code op, struct value a, struct value b)
{
    double x[2];
    const struct value both[] = {a, b};
    if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT)
        return overflow(in);
    for (int i = 0; i < 2; i++)
        x[i] = both[i].type == VALUE_BIG ? strtod(both[i].u.text->data, NULL) : both[i].u.real;
    if ((a.type == VALUE_BIG && isinf(x[0])) || (b.type == VALUE_BIG && isinf(x[1])))
        return interp_fail(in, "int too large to convert to float");
    return real_op(in, op, x[0], x[1]);
}

static bool is_any_number(struct value v)
{
    return v.type == VALUE_BIG || value_is_number(v);
}

struct value operator_binary(struct interp *in, enum operator_code op, struct value a,
                             struct value b)
{
    if (in->failed || !interp_step(in, 1))
        return value_of_type(VALUE_UNSET);
    if (value_is_undefined(a))
        return interp_fail_undefined(in, a);
    if (op == OP_MOD && a.type == VALUE_STRING)
        return percent(in, a, b);
    if (value_is_undefined(b))
        return interp_fail_undefined(in, b);
    if ((a.type == VALUE_BIG || b.type == VALUE_BIG) && is_any_number(a) && is_any_number(b))
        return big_op(in, op, a, b);
    if (value_is_integral(a) && value_is_integral(b))
        return integer_op(in, op, value_integer(a), value_integer(b));
    if (value_is_number(a) && value_is_number(b))
        return real_op(in, op, value_real(a), value_real(b));
    if (op == OP_ADD && a.type == VALUE_STRING && b.type == VALUE_STRING)
        return add_texts(in, a, b);
    if (op == OP_ADD && a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE))
        return join_lists(in, a, b);
    if (op == OP_MUL && is_repeatable(a) && value_is_integral(b))
        return repeat(in, a, value_integer(b));
    if (op == OP_MUL && value_is_integral(a) && is_repeatable(b))
        return repeat(in, b, value_integer(a));
    return interp_fail(in, "unsupported operand types for %s: '%s' and '%s'", operator_name(op),
                       value_type_name(a), value_type_name(b));
}

struct value operator_negate(struct interp *in, struct value v)
{
    if (value_is_undefined(v))
        return in->failed ? v : interp_fail_undefined(in, v);
    if (v.type == VALUE_BIG) {
        bool negative = v.u.text->data[0] == '-';
        struct value minus = text_new(in, negative ? "" : "-", !negative);
        struct value digits = text_new(in, v.u.text->data + negative, v.u.text->n_bytes - negative);
        if (in->failed)
            return v;
        v = text_concat(in, minus.u.text, digits.u.text);
        return in->failed ? v : value_from_digits(in, v.u.text->data, v.u.text->n_bytes);
    }
    if (value_is_integral(v) && value_integer(v) == INT64_MIN)
        return value_from_digits(in, "9223372036854775808", 19);
    if (value_is_integral(v))
        return value_int(-value_integer(v));
    if (v.type == VALUE_FLOAT)
        return value_float(-v.u.real);
    return interp_fail(in, "bad operand type for unary -: '%s'", value_type_name(v));
}

bool operator_contains(struct interp *in, struct value container, struct value item)
{
    if (container.type == VALUE_STRING) {
        if (item.type != VALUE_STRING) {
            if (value_is_undefined(item))
                interp_fail_undefined(in, item);
            else
                interp_fail(in, "'in' needs a string on the left of a string, not '%s'",
                            value_type_name(item));
            return false;
        }
        return interp_step(in, container.u.text->n_bytes / 64) &&
               memmem(container.u.text->data, container.u.text->n_bytes, item.u.text->data,
                      item.u.text->n_bytes) != NULL;
    }
    if (container.type == VALUE_DICT) {
        bool unhashable;
        const struct value *found = dict_get(in, container.u.dict, item, &unhashable);
        if (unhashable)
            interp_fail(in, "unhashable type: '%s'", value_type_name(item));
        return found != NULL;
    }
    struct cursor cursor;
    struct value other;
    if (!cursor_open(in, container, &cursor))
        return false;
    while (cursor_next(in, &cursor, &other))
        if (value_equal(in, other, item))
            return interp_ok(in);
    return false;
}

bool operator_compare(struct interp *in, enum operator_code op, struct value a, struct value b)
{
    int order = 0;
    switch (op) {
    case OP_EQ:
        return value_equal(in, a, b);
    case OP_NE:
        return !value_equal(in, a, b);
    case OP_IN:
        return operator_contains(in, b, a);
    case OP_NOT_IN:
        return !operator_contains(in, b, a);
    default:
        break;
    }
    if (value_is_undefined(a) || value_is_undefined(b)) {
        interp_fail_undefined(in, value_is_undefined(a) ? a : b);
        return false;
    }
    if (!value_order(in, a, b, &order) || order == 2)
        return false;
    return op == OP_LT   ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
}
