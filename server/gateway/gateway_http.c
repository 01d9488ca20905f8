#include "server/gateway/gateway_http.h"

#include <poll.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/server/listeners.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/gateway.h"
#include "server/gateway/http/http_front.h"
#include "server/gateway/metrics.h"

enum { LOOK_MS = 10, END_MS = 1000 };
/* An old server waits this long for the last requests of its idle connections. */
enum { LAST_REQUEST_MS = 3000 };

int gateway_http_check(const struct gateway_config *config, struct error *err)
{
    struct rpc_addresses addresses;
    int rc = rpc_listeners_split("--http-listen", config->http_listen, &addresses, err);
    for (size_t i = 0; i < addresses.n && !rc; i++)
        if (strncmp(addresses.list[i], "unix:", 5) != 0) /* a unix socket is on no network */
            rc = access_check_exposure(&config->access, "--http-listen", addresses.list[i], err);
    return rc;
}

int gateway_http_start(struct gateway *gateway, struct error *err)
{
    const struct gateway_config *c = &gateway->config;
    struct http_surfaces_config surfaces = {.dispatch = &gateway->dispatch,
                                            .texts = &gateway->service.texts,
                                            .is_strict = c->http_strict};
    struct http_front *front;
    struct http_front_config config = {.listen = c->http_listen,
                                       .grpc = c->listen,
                                       .origins = c->http_origins ? c->http_origins : "",
                                       .access = gateway->access,
                                       .metrics_are_open = c->http_open_metrics,
                                       .limits = &c->limits,
                                       .counters = &gateway->counters,
                                       .keepalive_time_ms = (uint32_t)c->keepalive_time_ms,
                                       .keepalive_timeout_ms = (uint32_t)c->keepalive_timeout_ms,
                                       .user_timeout_ms = gateway_user_timeout_ms(c),
                                       .n_threads = (uint32_t)c->threads,
                                       .max_connections = gateway->max_http_connections,
                                       .share = c->share};
    if (!c->http_listen || !c->http_listen[0])
        return 0;
    surfaces.pages = gateway_metrics_pages(gateway->metrics, &surfaces.n_pages);
    int rc = http_surfaces_init(&gateway->surfaces, &surfaces, err);
    config.routes = gateway->surfaces.routes;
    config.n_routes = gateway->surfaces.n_routes;
    if (!rc)
        rc = http_front_create(&config, &front, err);
    if (!rc)
        atomic_store(&gateway->http, front);
    return rc;
}

void gateway_http_drain(struct gateway *gateway)
{
    struct http_front *front = atomic_load(&gateway->http);
    if (front)
        http_front_drain(front, !gateway->is_replaced);
}

static bool is_over(struct gateway *gateway, struct http_front *front, int64_t last_ns)
{
    if (http_front_n_live(front))
        return false;
    bool awaits_requests = gateway->is_replaced && clock_now_ns() < last_ns;
    return !awaits_requests || !http_front_n_connections(front);
}

/* Waits until the time is over, no answer runs, or the drain shall hurry. */
static void wait_for_answers(struct gateway *gateway, struct http_front *front, int64_t end_ns)
{
    int64_t last_ns = clock_now_ns() + LAST_REQUEST_MS * NS_PER_MS;
    while (!is_over(gateway, front, last_ns) && clock_now_ns() < end_ns &&
           !atomic_load(&gateway->hurries))
        poll(NULL, 0, LOOK_MS);
}

/* The streams that are left get an error frame, which their clients can tell from an end. */
static void end_answers(struct gateway *gateway, struct http_front *front)
{
    struct error why;
    int64_t end_ns = clock_now_ns() + END_MS * NS_PER_MS;
    error_set(&why, STATUS_UNAVAILABLE, "the server is shutting down");
    error_reason(&why, REASON_DRAINING);
    dispatch_cancel_all(&gateway->relays, &why);
    while (http_front_n_live(front) && clock_now_ns() < end_ns)
        poll(NULL, 0, LOOK_MS);
}

void gateway_http_end(struct gateway *gateway, int64_t end_ns)
{
    struct http_front *front = atomic_load(&gateway->http);
    if (!front)
        return;
    gateway_http_drain(gateway);
    wait_for_answers(gateway, front, end_ns);
    if (http_front_n_live(front))
        end_answers(gateway, front);
    http_front_close(front);
}

void gateway_http_destroy(struct gateway *gateway)
{
    http_front_destroy(atomic_load(&gateway->http));
    http_surfaces_fini(&gateway->surfaces);
}
