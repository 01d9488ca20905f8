#include "manager/base/failpoint.h"

#if SLUICE_DEBUG_CHECKS
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void failpoint(const char *name)
{
    static atomic_long n_passages;
    const char *wanted = getenv("SLUICE_FAILPOINT");
    size_t n_name = strlen(name);
    if (!wanted || strncmp(wanted, name, n_name) != 0 ||
        (wanted[n_name] != '\0' && wanted[n_name] != ':'))
        return;
    long nth = wanted[n_name] == ':' ? strtol(wanted + n_name + 1, NULL, 10) : 1;
    if (atomic_fetch_add(&n_passages, 1) + 1 == nth)
        kill(getpid(), SIGKILL);
}
#else
typedef int failpoint_is_empty_in_this_build;
#endif
