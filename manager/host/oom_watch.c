#include "manager/host/oom_watch.h"

#include "base/clock.h"
#include "manager/host/process.h"

static const int64_t recent_ns = 10 * NS_PER_S;

void oom_watch_init(struct oom_watch *watch)
{
    *watch = (struct oom_watch){.n_kills = process_oom_kills()};
}

bool oom_watch_check(struct oom_watch *watch, int64_t now_ns)
{
    uint64_t n_kills = process_oom_kills();
    if (n_kills > watch->n_kills)
        watch->last_rise_ns = now_ns;
    if (n_kills) /* 0: the counter is unreadable at the moment */
        watch->n_kills = n_kills;
    return watch->last_rise_ns && now_ns - watch->last_rise_ns <= recent_ns;
}
