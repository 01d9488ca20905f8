#include "proto/http/http_metrics.h"

#include <stdatomic.h>

#include "base/metrics/metrics.h"
#include "proto/http/http_server.h"

static const struct metric_spec spec = {
    .name = "sluice_metrics_refusals_total",
    .help = "Connections and requests at the address of the metrics that were refused or ended "
            "because of a limit.",
    .type = METRIC_COUNTER,
    .labels = {"limit"}};

/* The names of the data plane's limits (docs/use/limits.md). */
static const char *const names[N_HTTP_LIMITS] = {
    [HTTP_LIMIT_CONNECTIONS] = "connections",      [HTTP_LIMIT_HANDSHAKE] = "handshake_timeout",
    [HTTP_LIMIT_HEADER_BYTES] = "metadata_bytes",  [HTTP_LIMIT_BODY_BYTES] = "message_bytes",
    [HTTP_LIMIT_BODY_BUDGET] = "http_body_budget", [HTTP_LIMIT_REQUEST_TIME] = "request_timeout",
    [HTTP_LIMIT_REQUESTS] = "connection_requests", [HTTP_LIMIT_IDLE] = "http_idle",
    [HTTP_LIMIT_ANSWER_TIME] = "slow_reader",
};

static void collect(void *arg, struct metrics_sink *sink)
{
    struct http_metrics *metrics = arg;
    const struct http_server *server = atomic_load(&metrics->server);
    if (!server)
        return;
    for (int i = 0; i < N_HTTP_LIMITS; i++)
        metrics_sample(sink, metrics->family, &names[i],
                       (double)http_server_n_limited(server, (enum http_limit)i));
}

int http_metrics_add(struct metrics *registry, struct http_metrics *out_metrics, struct error *err)
{
    atomic_init(&out_metrics->server, NULL);
    int rc = metrics_add(registry, &spec, 1, &out_metrics->family, err);
    return rc ? rc : metrics_add_collector(registry, collect, out_metrics, err);
}
