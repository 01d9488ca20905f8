#include "server/gateway/base/awake_clock.h"

#include <stdatomic.h>

#include "base/clock.h"

enum { MAX_TICK_NS = AWAKE_CLOCK_MAX_TICK_MS * NS_PER_MS };

void awake_clock_init(struct awake_clock *clock)
{
    clock->last_ns = 0;
    atomic_init(&clock->awake_ns, 1);
    atomic_init(&clock->ticked_ns, 0);
}

int64_t awake_clock_tick(struct awake_clock *clock, int64_t now_ns)
{
    int64_t gone_ns = clock->last_ns ? now_ns - clock->last_ns : 0;
    if (gone_ns > MAX_TICK_NS)
        gone_ns = MAX_TICK_NS;
    int64_t awake_ns = atomic_load(&clock->awake_ns) + gone_ns;
    clock->last_ns = now_ns;
    atomic_store(&clock->awake_ns, awake_ns);
    atomic_store(&clock->ticked_ns, now_ns);
    return awake_ns;
}

int64_t awake_clock_ticked_ns(const struct awake_clock *clock)
{
    return atomic_load(&clock->awake_ns);
}

/* The order of the reads matters: a tick between them makes the time later, never earlier. */
int64_t awake_clock_now_ns(const struct awake_clock *clock)
{
    int64_t ticked_ns = atomic_load(&clock->ticked_ns);
    int64_t awake_ns = atomic_load(&clock->awake_ns), gone_ns = clock_now_ns() - ticked_ns;
    gone_ns = gone_ns > 0 ? gone_ns : 0;
    return awake_ns + (gone_ns < MAX_TICK_NS ? gone_ns : MAX_TICK_NS);
}
