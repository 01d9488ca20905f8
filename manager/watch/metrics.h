/* metrics.h: /metrics and /healthz of the manager: its own figures, and those in the last status
 * of every worker. Served on the loop; loop thread only. */
#pragma once

#include <stdint.h>

struct access;
struct error;
struct fleet;
struct idle;
struct manager_metrics;
struct routes;
struct rpc_server;

/* All members are borrowed. */
struct manager_metrics_config {
    struct fleet *fleet;
    const struct idle *idle;
    const struct routes *routes;
    struct rpc_server *server;
    struct access *access;
    _Atomic uint64_t *n_refused; /* [N_RPC_LIMITS]: connections and calls beyond a limit */
};

/* Listens on the address of the settings (empty: nowhere, *out_metrics is NULL). All other parts
 * of the manager exist and outlive it. *out_metrics is owned. */
int manager_metrics_create(const struct manager_metrics_config *config,
                           struct manager_metrics **out_metrics, struct error *err);
void manager_metrics_destroy(struct manager_metrics *metrics); /* NULL is accepted */
