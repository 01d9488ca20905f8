/* inspect_text.h: the facts of a model's files as lines for people. Single-threaded. */
#pragma once

#include "sluice/v1/inspection.pb-c.h"

/* Prints to stdout. `source` names the files: a path, or a registered version. The caller has made
 * the texts printable. */
void inspect_text_print(const char *source, const Sluice__V1__Inspection *inspection);
