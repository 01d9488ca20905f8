/* loop.h: `for` and its loop variable. Private to engine/template; each interp belongs to one
 * thread. */
#pragma once

#include "engine/template/exec.h"

struct value loop_getattr(struct interp *in, struct loop *loop, const struct text *name);
/* loop(iterable) in a recursive loop: runs the loop over another iterable and returns the text. */
struct value loop_call(struct interp *in, struct loop *loop, const struct args *args);
enum flow loop_run(struct interp *in, const struct node *node);
