/* value.h: what a template computes with: Python-like values, immutable once shared (the namespace
 * and iterators apart). Values are 16 bytes, passed by copy; what they point to lives in the
 * render's arena or in the template's. Private to engine/template. One thread per interp.
 *
 * Failure is sticky: the first error is kept in the interp, every function returns something
 * harmless (VALUE_UNSET or false) from then on, and loops ask interp_ok(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct interp;
struct text;

enum value_type {
    VALUE_UNSET, /* no value: an argument that was not given, or after a failure */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIG, /* an integer outside 64 bits: its decimal digits; nothing is computed with it */
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_VIEW,     /* dict.keys(), .values(), .items() */
    VALUE_ITERATOR, /* what map, select, reverse, ... give: always true, read once */
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
    uint8_t aux;  /* UNDEFINED: type whose attribute is missing, or 0; VIEW: 'k', 'v' or 'i';
                     STRING: 'm' where it is markup (markupsafe.Markup), or 0 */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const struct text *text; /* STRING, BIG; UNDEFINED: the name that was looked up, or NULL */
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
/* A text as markup, which is what operations on markup give. */
static inline struct value value_marked(struct value v, bool is_markup)
{
    if (is_markup && v.type == VALUE_STRING)
        v.aux = 'm';
    return v;
}
/* None given, undefined or after a failure. */
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
/* Of an integral value. */
static inline int64_t value_integer(struct value v)
{
    return v.type == VALUE_BOOL ? (int64_t)v.u.boolean : v.u.integer;
}
/* Of a number. */
static inline double value_real(struct value v)
{
    return v.type == VALUE_FLOAT ? v.u.real : (double)value_integer(v);
}

/* An integer of any size: digits[n], with '-' before them where negative, without leading zeros. */
struct value value_from_digits(struct interp *in, const char *digits, size_t n);

/* Python's name of a type, for messages: "str", "dict", ... */
const char *value_type_name(struct value v);

/* An undefined value that remembers what was looked up: variable `name`, or attribute `name` of a
 * value of type `owner` (0: none). */
struct value value_undefined(const struct text *name, uint8_t owner);

bool value_truth(struct value v);
/* Python's ==; never fails but for depth. */
bool value_equal(struct interp *in, struct value a, struct value b);
/* Python's <, > by sign: *out_order < 0, 0, > 0, or 2 for unordered (NaN). False: a failure naming
 * the types. */
bool value_order(struct interp *in, struct value a, struct value b, int *out_order);
