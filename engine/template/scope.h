/* scope.h: the variables of a block. Private to engine/template; one thread per interp. */
#pragma once

#include "engine/template/value/interp.h"

struct variable {
    const struct text *name; /* interned: compared by address */
    struct value value;
};

struct scope {
    struct scope *parent;
    struct variable *variables;
    size_t n, capacity;
    bool captured; /* a macro was defined here or below: may outlive its block */
};

/* A scope within the current one, which becomes the current one; NULL after a failure. */
struct scope *scope_push(struct interp *in);
/* Sets a variable of the current scope. */
void scope_set(struct interp *in, const struct text *name, struct value v);
/* A variable of this scope or one around it, of the caller's context, or a global function. */
struct value scope_lookup(struct interp *in, const struct text *name);
