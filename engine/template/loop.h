/* loop.h: `for` and its loop variable. Private to engine/template; one thread per interp. */
#pragma once

#include "engine/template/exec.h"

struct value loop_getattr(struct interp *in, struct loop *loop, const struct text *name);
/* loop(iterable) in a recursive loop: the loop's text over another iterable. */
struct value loop_call(struct interp *in, struct loop *loop, const struct args *args);
enum flow loop_run(struct interp *in, const struct node *node);
