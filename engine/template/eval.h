/* eval.h: evaluates expressions. Private to engine/template; each interp belongs to one thread. */
#pragma once

#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"

struct value eval(struct interp *in, const struct node *node);
struct value eval_call(struct interp *in, struct value callee, const struct args *args);

/* Evaluated arguments. The first few lie in this struct, further ones in the arena. */
enum { ARG_SPACE = 8 }; /* a power of two: arg_room() relies on it */
struct arg_space {
    struct args args;
    struct value *positional_items; /* same arrays as in args, but writable */
    struct keyword *keyword_items;
    struct value positional[ARG_SPACE];
    struct keyword keywords[ARG_SPACE];
};
bool eval_args(struct interp *in, const struct node *list, struct arg_space *out_space);
