/* seeded_bug.h: bugs that tests plant on purpose, to prove that the checkers of the invariants
 * (tests/e2e/invariants.py) see them. Only in builds with -DSLUICE_SEEDED_BUGS=ON, which a release
 * build refuses; there SLUICE_SEEDED_BUG=NAME in the environment puts one in force, and the program
 * says so. In other builds the calls are 0. Any thread. */
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
