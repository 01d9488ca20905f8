/* failpoint.h: named places where a test may kill the manager. SLUICE_FAILPOINT=NAME (NAME:N:
 * the Nth passage) in the environment sends SIGKILL to the process at that place, in builds with
 * SLUICE_DEBUG_CHECKS. In other builds the calls are empty. Any thread. */
#pragma once

#if SLUICE_DEBUG_CHECKS
void failpoint(const char *name);
#else
static inline void failpoint(const char *name)
{
    (void)name;
}
#endif
