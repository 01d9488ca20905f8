/* eval.h: the value of an expression. Private to engine/template; one thread per interp. */
#pragma once

#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"

struct value eval(struct interp *in, const struct node *node);
struct value eval_call(struct interp *in, struct value callee, const struct args *args);

/* Evaluated arguments; the common few live here and not in the arena. */
enum { ARG_SPACE = 8 }; /* power of two */
struct arg_space {
    struct args args;
    struct value *positional_items; /* args.positional, writable */
    struct keyword *keyword_items;
    struct value positional[ARG_SPACE];
    struct keyword keywords[ARG_SPACE];
};
bool eval_args(struct interp *in, const struct node *list, struct arg_space *out_space);
