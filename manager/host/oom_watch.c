#include "manager/host/oom_watch.h"

#include "base/clock.h"
#include "manager/host/process.h"

static const int64_t just_ns = 10 * NS_PER_S;

void oom_watch_init(struct oom_watch *watch)
{
    *watch = (struct oom_watch){.n_kills = process_oom_kills()};
}

bool oom_watch_look(struct oom_watch *watch, int64_t now_ns)
{
    uint64_t n_kills = process_oom_kills();
    if (n_kills > watch->n_kills)
        watch->rose_ns = now_ns;
    if (n_kills) /* else it cannot be read, for the moment */
        watch->n_kills = n_kills;
    return watch->rose_ns && now_ns - watch->rose_ns <= just_ns;
}
