/* seeded_bug.h: bugs that tests plant to prove that the invariant checkers
 * (tests/e2e/invariants.py) find them. Only in builds with -DSLUICE_SEEDED_BUGS=ON, which a release
 * build refuses. There SLUICE_SEEDED_BUG=NAME in the environment activates a bug, and the program
 * logs a warning. In other builds seeded_bug() is always false. Any thread. */
#pragma once

#include <stdbool.h>

#if SLUICE_SEEDED_BUGS
bool seeded_bug(const char *name);
#else
static inline bool seeded_bug(const char *name)
{
    (void)name;
    return false;
}
#endif
