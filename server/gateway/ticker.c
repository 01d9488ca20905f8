#include "server/gateway/ticker.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/system/heap.h"
#include "base/system/notify.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/idle_client.h"
#include "server/gateway/dispatch/reattach.h"
#include "server/gateway/dispatch/slow_reader.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/gateway.h"
#include "server/gateway/http/http_front.h"

enum { TICK_MS = 50, MIN_TICK_MS = 1, CHECK_MS = 250, MAX_CHECK_MS = 1000, CHECKS_PER_LIMIT = 30 };
enum { COUNT_MS = 1000 };

/* Sends the watchdog's sign of life from the ticker. The ticker takes every lock, so a deadlock
 * stops the signs. */
static void notify_watchdog_due(struct gateway *gateway, int64_t now_ns, int64_t *next_ns)
{
    if (!gateway->config.watchdog_ms || now_ns < *next_ns)
        return;
    notify_watchdog();
    *next_ns = now_ns + (int64_t)gateway->config.watchdog_ms * NS_PER_MS / 3;
}

/* Detects the end of a burst of calls or of connections (base/system/heap.h). Idle connections are
 * watched too, because each needs tens of KiB for TLS. */
struct memory_watch {
    struct heap_watch calls, connections;
    int64_t next_count_ns;
};

static void give_memory_back(struct gateway *gateway, struct memory_watch *watch, int64_t now_ns)
{
    struct rpc_server_stats stats;
    rpc_server_stats(gateway->server, &stats);
    heap_watch(&watch->calls, stats.n_live, stats.n_accepted, now_ns);
    if (now_ns < watch->next_count_ns)
        return;
    struct http_front *http = atomic_load(&gateway->http);
    uint32_t n_http = http ? http_front_n_connections(http) : 0;
    heap_watch(&watch->connections, rpc_server_n_connections(gateway->server) + n_http, 0, now_ns);
    watch->next_count_ns = now_ns + COUNT_MS * NS_PER_MS;
}

/* How often all requests are checked for exceeded limits. Each check reads a few cold cache
 * lines per request. So the period keeps the shortest limit only within a few percent. */
static int64_t check_period_ns(const struct gateway_limits *limits)
{
    uint64_t ms = limits->slow_reader_ms;
    if (limits->max_pause_ms < ms)
        ms = limits->max_pause_ms;
    if (limits->request_timeout_ms < ms)
        ms = limits->request_timeout_ms;
    ms /= CHECKS_PER_LIMIT;
    ms = ms < CHECK_MS ? CHECK_MS : ms > MAX_CHECK_MS ? MAX_CHECK_MS : ms;
    return (int64_t)ms * NS_PER_MS;
}

static void end_overdue(struct gateway *gateway, int64_t awake_ns)
{
    slow_reader_tick(&gateway->relays, awake_ns);
    idle_client_tick(&gateway->relays, awake_ns);
    slow_reader_tick_calls(&gateway->relays, gateway->server, awake_ns);
    rpc_server_end_overdue(gateway->server, awake_ns, gateway->config.limits.request_timeout_ms);
}

/* Waits for the next tick. A requested tick comes sooner, but ticks take at most half of the
 * time, because each walks over all waiting requests. Returns false when the ticker should end. */
static bool wait_for_tick(struct gateway *gateway, int64_t began_ns)
{
    int64_t now_ns = clock_now_ns(), latest_ns = now_ns + TICK_MS * NS_PER_MS;
    int64_t pause_ns = began_ns ? now_ns - began_ns : 0;
    int64_t soonest_ns = pause_ns < TICK_MS * NS_PER_MS ? now_ns + pause_ns : latest_ns;
    if (soonest_ns < began_ns + MIN_TICK_MS * NS_PER_MS)
        soonest_ns = began_ns + MIN_TICK_MS * NS_PER_MS;
    return wake_wait(&gateway->wake, soonest_ns, latest_ns);
}

void *ticker_run(void *arg)
{
    struct gateway *gateway = arg;
    struct memory_watch memory = {0};
    int64_t now_ns = 0, next_check_ns = 0, next_look_ns = 0, next_watchdog_ns = 0;
    int64_t next_reattach_ns = 0;
    while (wait_for_tick(gateway, now_ns)) {
        now_ns = clock_now_ns();
        int64_t awake_ns = awake_clock_tick(&gateway->clock, now_ns);
        replicas_tick(&gateway->replicas, now_ns);
        dispatch_retry_waiting(&gateway->dispatch);
        text_calls_retry_waiting(&gateway->service.texts);
        dispatch_tell_waiting(&gateway->dispatch);
        kserve_tick(&gateway->kserve, now_ns);
        if (now_ns >= next_reattach_ns) {
            reattach_tick(&gateway->relays, awake_ns);
            next_reattach_ns = now_ns + TICK_MS * NS_PER_MS;
        }
        notify_watchdog_due(gateway, now_ns, &next_watchdog_ns);
        if (now_ns >= next_check_ns) {
            generate_streams_tick(&gateway->service, awake_ns);
            give_memory_back(gateway, &memory, now_ns);
            next_check_ns = now_ns + CHECK_MS * NS_PER_MS;
        }
        if (now_ns >= next_look_ns) {
            end_overdue(gateway, awake_ns);
            next_look_ns = now_ns + check_period_ns(&gateway->config.limits);
        }
    }
    return NULL;
}
