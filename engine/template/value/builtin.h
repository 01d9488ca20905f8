/* builtin.h: functions that a template may call: filters, tests, globals and methods. The tables
 * stand in engine/template/builtin; the parser and the interpreter find them here by name. Private
 * to engine/template; one thread per interp. */
#pragma once

#include "engine/template/value/value.h"

/* Arguments of a call. */
struct keyword {
    const struct text *name;
    struct value value;
};
struct args {
    const struct value *positional;
    size_t n_positional;
    const struct keyword *keywords;
    size_t n_keywords;
};

/* `argv` holds one value per name in `params` (VALUE_UNSET where not given). For variadic built-ins
 * (params NULL) argv is NULL and `args` holds what came. */
typedef struct value (*builtin_fn)(struct interp *in, struct value self, const struct value *argv,
                                   const struct args *args);
struct builtin {
    const char *name;
    builtin_fn fn;
    const char *params; /* "width,first,blank"; "" none; NULL variadic */
    unsigned n_required;
};

struct value builtin_call(struct interp *in, const struct builtin *builtin, const char *kind,
                          struct value self, const struct args *args);

/* NULL where the name is unknown. */
const struct builtin *builtin_filter(const struct text *name);
const struct builtin *builtin_test(const struct text *name);
const struct builtin *builtin_global(const struct text *name);
const struct builtin *builtin_method(struct value self, const struct text *name);
bool builtin_is_mutating(struct value self, const struct text *name);

/* Of a built-in's arguments: an integer, or `fallback` where it was not given. */
int64_t builtin_arg_integer(struct interp *in, struct value v, int64_t fallback, const char *name);
/* Text; NULL after a failure or where it was not given. */
const struct text *builtin_arg_text(struct interp *in, struct value v, const char *name);
