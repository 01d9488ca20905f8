/* metrics.h: the server's /metrics and /healthz. The registry exists even if no address serves
 * it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "sluice/manager/v1/routing.pb-c.h"

struct error;
struct gateway;
struct gateway_metrics;
struct http_route;
struct meters;

/* `gateway` outlives the metrics; its config has the address (empty: not served) and the
 * aliases. *out_metrics is owned. */
int gateway_metrics_create(struct gateway *gateway, struct gateway_metrics **out_metrics,
                           struct error *err);
/* Serve only while all parts of the gateway exist, because scrapes read them. */
int gateway_metrics_listen(struct gateway_metrics *metrics, struct error *err);
/* Returns the routes of /metrics and /healthz, for other listeners. */
const struct http_route *gateway_metrics_pages(struct gateway_metrics *metrics, size_t *out_n);
void gateway_metrics_close(struct gateway_metrics *metrics);
void gateway_metrics_destroy(struct gateway_metrics *metrics); /* NULL is accepted */

/* The loaded versions of this table are measured from now on, even without replicas and
 * requests. Versions of the previous table are measured until their last link and request are
 * gone. */
void gateway_metrics_routes(struct gateway_metrics *metrics,
                            const Sluice__Manager__V1__RouteTable *table);

struct meters *gateway_meters(struct gateway_metrics *metrics);
