#include "base/seeded_bug.h"

#if SLUICE_SEEDED_BUGS
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static char wanted[64];

static void read_environment_once(void)
{
    const char *name = getenv("SLUICE_SEEDED_BUG");
    if (!name || strlen(name) >= sizeof(wanted))
        return;
    memcpy(wanted, name, strlen(name) + 1);
    log_warn(LOG_EVENT("planted bug active"), LOG_STR("name", wanted));
}

bool seeded_bug(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment_once);
    return wanted[0] && strcmp(wanted, name) == 0;
}
#else
typedef int seeded_bug_is_empty_in_this_build;
#endif
