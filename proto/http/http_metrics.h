/* http_metrics.h: adds the refusals of the HTTP server that serves /metrics to the metrics. At
 * start; single-threaded. */
#pragma once

struct error;
struct http_server;
struct metrics;
struct metrics_family;

/* Plain data of the owner, which sets `server` when that runs. A scrape may come before. */
struct http_metrics {
    _Atomic(struct http_server *) server; /* NULL: no samples */
    struct metrics_family *family;
};

/* Adds sluice_metrics_refusals_total. `out_metrics` is borrowed for the registry's life.
 * RESOURCE_EXHAUSTED without memory. */
int http_metrics_add(struct metrics *registry, struct http_metrics *out_metrics, struct error *err);
