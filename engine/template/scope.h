/* scope.h: the variables of a block. Private to engine/template; each interp belongs to one
 * thread. */
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
    /* a macro was defined in this scope or within: the scope may outlive its block */
    bool captured;
};

/* Enters a new scope within the current scope. Returns NULL after a failure. */
struct scope *scope_push(struct interp *in);
/* Sets a variable of the current scope. */
void scope_set(struct interp *in, const struct text *name, struct value v);
/* Finds a variable: in this scope or an enclosing one, in the caller's context, or a global
 * function. */
struct value scope_lookup(struct interp *in, const struct text *name);
