/* failpoint.h: named places where a test can have the manager killed. SLUICE_FAILPOINT=NAME (or
 * NAME:N for the Nth passage) in the environment of a build with SLUICE_DEBUG_CHECKS sends the
 * process SIGKILL when it gets there; in other builds the calls are empty. Any thread. */
#pragma once

#if SLUICE_DEBUG_CHECKS
void failpoint(const char *name);
#else
static inline void failpoint(const char *name)
{
    (void)name;
}
#endif
