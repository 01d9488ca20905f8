/* find.h: finds a literal in a text. Any thread. */
#pragma once

#include <stddef.h>

/* The first place of `what` in `text`, or NULL. Like memmem(), but touches no byte behind the hit.
 * So a loop over all places stays linear under sanitizers too, which check all that memmem() may
 * read. An empty `what` is found at the start. */
const char *find_literal(const char *text, size_t n_bytes, const char *what, size_t n_what);
