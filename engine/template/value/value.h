/* value.h: the values of templates: Python-like, and immutable once shared, except namespaces and
 * iterators. Values are 16 bytes and passed by copy. Their data lie in the arena of the render or
 * of the template. Private to engine/template. Each interp belongs to one thread.
 *
 * Failure is sticky: the interp keeps the first error. Afterwards every function returns a harmless
 * value (VALUE_UNSET or false), and loops check interp_ok(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct interp;
struct text;

enum value_type {
    VALUE_UNSET, /* no value: an argument that was not given, or the result after a failure */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIG, /* an integer outside 64 bits, as decimal digits; takes no part in arithmetic */
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_VIEW,     /* dict.keys(), .values(), .items() */
    VALUE_ITERATOR, /* result of map, select, reverse, ...: always true, can be read once */
    VALUE_RANGE,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_BUILTIN,
    VALUE_METHOD,
    VALUE_MACRO,
    VALUE_CYCLER,
    VALUE_JOINER,
};

struct value {
    uint8_t type; /* enum value_type */
    /* UNDEFINED: type of the value that lacks the attribute, or 0. VIEW: 'k', 'v' or 'i'. STRING:
     * 'm' for markup (markupsafe.Markup), or 0 */
    uint8_t aux;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const struct text *text; /* STRING, BIG; UNDEFINED: the looked-up name, or NULL */
        struct list *list;       /* LIST, TUPLE, VIEW, ITERATOR, CYCLER */
        struct range *range;
        struct dict *dict; /* DICT, NAMESPACE */
        struct loop *loop;
        const struct builtin *builtin;
        struct method *method;
        struct macro *macro;
        struct joiner *joiner;
    } u;
};

struct range {
    int64_t start, stop, step;
    uint64_t n;
};

struct method {
    struct value self;
    const struct builtin *builtin;
};

struct joiner {
    struct value separator;
    bool used;
};

static inline struct value value_of_type(enum value_type type)
{
    return (struct value){.type = (uint8_t)type};
}
static inline struct value value_none(void)
{
    return value_of_type(VALUE_NONE);
}
static inline struct value value_bool(bool b)
{
    return (struct value){.type = VALUE_BOOL, .u.boolean = b};
}
static inline struct value value_int(int64_t i)
{
    return (struct value){.type = VALUE_INT, .u.integer = i};
}
static inline struct value value_float(double x)
{
    return (struct value){.type = VALUE_FLOAT, .u.real = x};
}
static inline struct value value_text(const struct text *text)
{
    return (struct value){.type = VALUE_STRING, .u.text = text};
}
static inline struct value value_list(enum value_type type, struct list *list)
{
    return (struct value){.type = (uint8_t)type, .u.list = list};
}
static inline struct value value_dict(struct dict *dict)
{
    return (struct value){.type = VALUE_DICT, .u.dict = dict};
}
static inline bool value_is_text(struct value v)
{
    return v.type == VALUE_STRING;
}
static inline bool value_is_markup(struct value v)
{
    return v.type == VALUE_STRING && v.aux == 'm';
}
/* Marks a text as markup if is_markup: operations on markup give markup. */
static inline struct value value_marked(struct value v, bool is_markup)
{
    if (is_markup && v.type == VALUE_STRING)
        v.aux = 'm';
    return v;
}
/* True if not given, undefined, or after a failure. */
static inline bool value_is_undefined(struct value v)
{
    return v.type == VALUE_UNDEFINED || v.type == VALUE_UNSET;
}
static inline bool value_is_integral(struct value v)
{
    return v.type == VALUE_INT || v.type == VALUE_BOOL;
}
static inline bool value_is_number(struct value v)
{
    return value_is_integral(v) || v.type == VALUE_FLOAT;
}
/* The integer of an integral value. */
static inline int64_t value_integer(struct value v)
{
    return v.type == VALUE_BOOL ? (int64_t)v.u.boolean : v.u.integer;
}
/* A number as double. */
static inline double value_real(struct value v)
{
    return v.type == VALUE_FLOAT ? v.u.real : (double)value_integer(v);
}

/* An integer of any size from digits[n]: '-' first if negative, no leading zeros. */
struct value value_from_digits(struct interp *in, const char *digits, size_t n);

/* Python's type name, for messages: "str", "dict", ... */
const char *value_type_name(struct value v);

/* An undefined value that remembers the look-up: variable `name`, or attribute `name` of a value of
 * type `owner` (0: a variable). */
struct value value_undefined(const struct text *name, uint8_t owner);

bool value_truth(struct value v);
/* Python's ==. Fails only beyond the nesting limit. */
bool value_equal(struct interp *in, struct value a, struct value b);
/* Python's < and >: *out_order is < 0, 0, > 0, or 2 if unordered (NaN). Returns false, with a
 * failure that names the types, if the values cannot be compared. */
bool value_order(struct interp *in, struct value a, struct value b, int *out_order);
