/* builtin.h: functions that a template may call: filters, tests, globals and methods. The tables
 * are in engine/template/builtin; parser and interpreter look them up by name here. Private to
 * engine/template; each interp belongs to one thread. */
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

/* `argv` has a value for each name in `params`; VALUE_UNSET if not given. For variadic built-ins
 * (params NULL), argv is NULL and `args` has all arguments. */
typedef struct value (*builtin_fn)(struct interp *in, struct value self, const struct value *argv,
                                   const struct args *args);
struct builtin {
    const char *name;
    builtin_fn fn;
    const char *params; /* "width,first,blank"; "": no parameters; NULL: variadic */
    unsigned n_required;
};

struct value builtin_call(struct interp *in, const struct builtin *builtin, const char *kind,
                          struct value self, const struct args *args);

/* NULL if the name is unknown. */
const struct builtin *builtin_filter(const struct text *name);
const struct builtin *builtin_test(const struct text *name);
const struct builtin *builtin_global(const struct text *name);
const struct builtin *builtin_method(struct value self, const struct text *name);
bool builtin_is_mutating(struct value self, const struct text *name);

/* An integer argument; `fallback` if not given. */
int64_t builtin_arg_integer(struct interp *in, struct value v, int64_t fallback, const char *name);
/* A text argument; NULL if not given, or after a failure. */
const struct text *builtin_arg_text(struct interp *in, struct value v, const char *name);
