/* error_names.h: names of fields in errors. The server's checks name a field as Sluice's proto
 * spells it. An API that spells fields otherwise has a table with its names. Plain functions; any
 * thread. */
#pragma once

#include <stdbool.h>

struct error;

/* `from` is a field of the proto, or a group of fields if it ends with a point: "sampling.". `to`
 * replaces `from`; the rest of the name stays. A row without names ends a table. */
struct error_name {
    const char *from, *to;
};

/* Renames the field of an error by the first row that fits, also where the text begins with the
 * field. A row of a field also fits an element "stop[1]" and a part "chat.x". Returns false, and
 * changes nothing, if no row fits. */
bool error_names_apply(struct error *err, const struct error_name *rows);
/* Renames the field to `name` likewise. `name` is no part of *err. */
void error_names_set(struct error *err, const char *name);
