/* exec.h: runs statements. Private to engine/template; each interp belongs to one thread. */
#pragma once

#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"

struct macro {
    const struct macro_def *def;
    struct scope *scope; /* scope of the definition */
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

/* Runs the statements from `first` on, until a break or continue leaves the enclosing loop. */
enum flow exec_list(struct interp *in, const struct node *first);
/* Assigns to a name, an attribute of a namespace, or a tuple of targets. */
bool exec_assign(struct interp *in, const struct node *target, struct value v);
/* Runs a macro and returns its text. */
struct value exec_macro(struct interp *in, struct macro *macro, const struct args *args);
