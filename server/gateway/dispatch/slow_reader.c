#include "server/gateway/dispatch/slow_reader.h"

#include "base/error.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/relay/relay.h"

struct slow_list {
    struct relay *relays[64];
    uint32_t n;
    int64_t awake_ns;
};

enum { SLOW_AT_ONCE = sizeof(((struct slow_list *)0)->relays) / sizeof(struct relay *) };

static void collect_slow(void *ctx, struct relay *relay)
{
    struct slow_list *slow = ctx;
    if (slow->n < SLOW_AT_ONCE && relay_is_slow(relay, slow->awake_ns)) {
        relay_retain(relay);
        slow->relays[slow->n++] = relay;
    }
}

static void slow_error(struct relay_shared *shared, struct error *out_err)
{
    /* A message is stuck in flight: the client receives only code and text, so the text repeats
     * the reason. */
    error_set(out_err, STATUS_RESOURCE_EXHAUSTED,
              "SLOW_READER: the client has taken no message for %llu ms",
              (unsigned long long)shared->limits->slow_reader_ms);
    error_reason(out_err, REASON_SLOW_READER);
}

void slow_reader_found(struct relay_shared *shared, struct error *out_err)
{
    slow_error(shared, out_err);
    counters_event(shared->counters, COUNTER_SLOW_READER);
}

static void end_slow(struct relay_shared *shared, struct relay *relay)
{
    struct error err;
    slow_reader_found(shared, &err);
    dispatch_abort(relay, &err);
}

void slow_reader_tick(struct relay_shared *shared, int64_t awake_ns)
{
    struct slow_list slow = {.n = SLOW_AT_ONCE, .awake_ns = awake_ns};
    while (slow.n == SLOW_AT_ONCE) {
        slow.n = 0;
        registry_each(&shared->registry, collect_slow, &slow);
        for (uint32_t i = 0; i < slow.n; i++) {
            end_slow(shared, slow.relays[i]);
            relay_release(slow.relays[i]);
        }
    }
}

void slow_reader_tick_calls(struct relay_shared *shared, struct rpc_server *server,
                            int64_t awake_ns)
{
    struct error err;
    slow_error(shared, &err);
    uint32_t n = rpc_server_end_stuck(server, awake_ns, shared->limits->slow_reader_ms, &err);
    while (n-- > 0)
        counters_event(shared->counters, COUNTER_SLOW_READER);
}
