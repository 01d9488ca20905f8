/* operators.h: attributes, subscripts, arithmetic and comparisons of values. Private to
 * engine/template; each interp belongs to one thread. */
#pragma once

#include "engine/template/parse/ast.h"

struct value operator_getattr(struct interp *in, struct value v, const struct text *name);
struct value operator_getitem(struct interp *in, struct value v, struct value key);
struct value operator_slice(struct interp *in, struct value v, struct value start,
                            struct value stop, struct value step);
struct value operator_binary(struct interp *in, enum operator_code op, struct value a,
                             struct value b);
bool operator_compare(struct interp *in, enum operator_code op, struct value a, struct value b);
bool operator_contains(struct interp *in, struct value container, struct value item);
struct value operator_negate(struct interp *in, struct value v);
