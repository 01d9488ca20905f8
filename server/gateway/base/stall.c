#include "server/gateway/base/stall.h"

#include "base/clock.h"

void stall_hello(struct stall_watch *watch, uint32_t heartbeat_ms, int64_t awake_ns)
{
    watch->heartbeat_ms = heartbeat_ms;
    watch->heard_ns = awake_ns;
    watch->moved_ns = awake_ns;
}

void stall_heard(struct stall_watch *watch, int64_t awake_ns)
{
    watch->heard_ns = awake_ns;
}

bool stall_on_load(struct stall_watch *watch, uint64_t progress, uint32_t n_ready, int64_t awake_ns)
{
    bool moves = progress != watch->progress || !n_ready;
    bool back = watch->stalled && moves;
    /* Requests that reach an idle worker start the measured time: before, there was nothing to
     * do. */
    if (moves || !watch->ready)
        watch->moved_ns = awake_ns;
    watch->progress = progress;
    watch->ready = n_ready != 0;
    if (back)
        watch->stalled = false;
    return back;
}

bool stall_found(struct stall_watch *watch, int64_t awake_ns, uint64_t limit_ms)
{
    int64_t limit_ns = (int64_t)limit_ms * NS_PER_MS;
    int64_t silence_ns = 2 * (int64_t)watch->heartbeat_ms * NS_PER_MS;
    if (!watch->heartbeat_ms || watch->stalled)
        return false;
    if (silence_ns < limit_ns)
        silence_ns = limit_ns;
    watch->stalled = awake_ns - watch->heard_ns > silence_ns ||
                     (watch->ready && awake_ns - watch->moved_ns > limit_ns);
    return watch->stalled;
}
