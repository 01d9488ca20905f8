/* metrics.h: /metrics and /healthz of the manager: its own figures, and those of every worker as it
 * told them last. Served on the loop; loop thread only. */
#pragma once

struct error;
struct manager;
struct manager_metrics;

/* Listens where the settings say (empty: nowhere, *out_metrics is NULL). All other parts of the
 * manager are there and outlive it. *out_metrics is owned. */
int manager_metrics_create(struct manager *manager, struct manager_metrics **out_metrics,
                           struct error *err);
void manager_metrics_destroy(struct manager_metrics *metrics); /* NULL is accepted */
