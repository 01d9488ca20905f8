/* inspection.h: the facts of a model's files for people, as a sluice.v1.Inspection.
 * Single-threaded.
 */
#pragma once

#include "base/arena.h"
#include "sluice/worker/v1/report.pb-c.h"

struct engine_facts;
struct error;
struct tokenizer;

/* `report` holds its own parts already: info, files, groups, templates and notes. `tok` and `facts`
 * are NULL where they are not supported. Everything in *out is in the arena. */
int inspection_make(struct arena *arena, const struct tokenizer *tok,
                    const struct engine_facts *facts,
                    const Sluice__Worker__V1__InspectReport *report, Sluice__V1__Inspection **out,
                    struct error *err);
