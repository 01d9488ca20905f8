/* sequence.h: functions on sequences for filters, tests and methods. Private to engine/template. */
#pragma once

#include "engine/template/value/builtin.h"

/* item.a.b for the path "a.b"; parts of digits are indices. Without a path, the item itself. */
struct value sequence_attribute(struct interp *in, struct value item, struct value path);
/* len(v), or a failure. */
struct value sequence_length(struct interp *in, struct value v);
