#include "server/gateway/relay/reattach.h"

#include <stdatomic.h>

#include "server/gateway/gateway.h"
#include "server/gateway/relay/relay.h"

enum { AT_ONCE = 64 };

struct waiting_list {
    struct relay *relays[AT_ONCE];
    uint32_t n;
    int64_t awake_ns;
};

static void collect(void *ctx, struct relay *relay)
{
    struct waiting_list *list = ctx;
    if (list->n == AT_ONCE || !relay_has_expired(relay, list->awake_ns))
        return;
    relay_retain(relay);
    list->relays[list->n++] = relay;
}

void reattach_tick(struct gateway *gateway, int64_t awake_ns)
{
    struct waiting_list list = {.n = AT_ONCE, .awake_ns = awake_ns};
    if (!atomic_load(&gateway->n_detached))
        return;
    while (list.n == AT_ONCE) {
        list.n = 0;
        registry_each(&gateway->registry, collect, &list);
        for (uint32_t i = 0; i < list.n; i++) {
            relay_expire(list.relays[i], awake_ns);
            relay_release(list.relays[i]);
        }
    }
}

void reattach_end(struct gateway *gateway)
{
    reattach_tick(gateway, INT64_MAX);
}
