#include "server/gateway/dispatch/reattach.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/relay/relay.h"

enum { AT_ONCE = 64 };

struct waiting_list {
    struct relay *relays[AT_ONCE];
    uint32_t n;
    int64_t awake_ns;
};

/* Under the relay's lock: true if the client is gone, and its window or the deadline is over. A
 * window stops while the server process is stopped; a deadline does not. */
static bool has_expired(const struct relay *relay, int64_t awake_ns)
{
    int64_t until_ns = relay->detached_ns + (int64_t)relay->window_ms * NS_PER_MS;
    return relay->detached_ns && (awake_ns >= until_ns || clock_now_ns() >= relay->deadline_ns);
}

static void collect(void *ctx, struct relay *relay)
{
    struct waiting_list *list = ctx;
    pthread_mutex_lock(&relay->lock);
    bool over = list->n < AT_ONCE && has_expired(relay, list->awake_ns);
    pthread_mutex_unlock(&relay->lock);
    if (!over)
        return;
    relay_retain(relay);
    list->relays[list->n++] = relay;
}

static void expire(struct relay *relay, int64_t awake_ns)
{
    pthread_mutex_lock(&relay->lock);
    bool over = has_expired(relay, awake_ns);
    bool late = clock_now_ns() >= relay->deadline_ns;
    if (over)
        relay->forgotten = true;
    pthread_mutex_unlock(&relay->lock);
    if (over)
        dispatch_close(relay, late ? STATUS_DEADLINE_EXCEEDED : STATUS_CANCELLED);
}

void reattach_tick(struct relay_shared *shared, int64_t awake_ns)
{
    struct waiting_list list = {.n = AT_ONCE, .awake_ns = awake_ns};
    if (!atomic_load(&shared->n_detached))
        return;
    while (list.n == AT_ONCE) {
        list.n = 0;
        registry_each(&shared->registry, collect, &list);
        for (uint32_t i = 0; i < list.n; i++) {
            expire(list.relays[i], awake_ns);
            relay_release(list.relays[i]);
        }
    }
}

void reattach_end(struct relay_shared *shared)
{
    reattach_tick(shared, INT64_MAX);
}
