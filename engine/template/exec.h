/* exec.h: runs statements. Private to engine/template; one thread per interp. */
#pragma once

#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"

struct macro {
    const struct macro_def *def;
    struct scope *scope; /* where it was defined */
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

/* Statements from `first` on, until one leaves the loop around. */
enum flow exec_list(struct interp *in, const struct node *first);
/* Assigns to a name, an attribute of a namespace, or a tuple of targets. */
bool exec_assign(struct interp *in, const struct node *target, struct value v);
/* The text that a macro writes. */
struct value exec_macro(struct interp *in, struct macro *macro, const struct args *args);
