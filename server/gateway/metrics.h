/* metrics.h: what sluice-server shows of itself at /metrics and /healthz. The registry is there
 * whether or not anybody can scrape it. */
#pragma once

#include <stdint.h>

#include "sluice/manager/v1/routing.pb-c.h"

struct error;
struct gateway;
struct gateway_metrics;
struct meters;

/* `gateway` outlives it; its config says where to listen (empty: nowhere) and which aliases there
 * are. *out_metrics is owned. */
int gateway_metrics_create(struct gateway *gateway, struct gateway_metrics **out_metrics,
                           struct error *err);
/* Scrapes read the gateway's parts: from when all are there until the first goes. */
int gateway_metrics_listen(struct gateway_metrics *metrics, struct error *err);
void gateway_metrics_close(struct gateway_metrics *metrics);
void gateway_metrics_destroy(struct gateway_metrics *metrics); /* NULL is accepted */

/* The loaded versions of this table are measured from now on, even with no replica and no request;
 * those of the table before are no longer, once nothing of theirs is left. */
void gateway_metrics_routes(struct gateway_metrics *metrics,
                            const Sluice__Manager__V1__RouteTable *table);

struct meters *gateway_meters(struct gateway_metrics *metrics);
/* 0: does not listen, or on a unix socket. */
uint16_t gateway_metrics_port(const struct gateway_metrics *metrics);
