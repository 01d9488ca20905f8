/* worker_metrics.h: a WorkerStatus as metrics. The worker shows its own status and the manager
 * the status of every worker, by the same table. So names and meanings never differ. */
#pragma once

#include "sluice/worker/v1/worker.pb-c.h"

struct error;
struct metrics;
struct metrics_sink;
struct worker_metrics;

/* Adds the metric families of workers to `metrics`. *out_metrics is owned. */
int worker_metrics_create(struct metrics *metrics, struct worker_metrics **out_metrics,
                          struct error *err);
void worker_metrics_destroy(struct worker_metrics *metrics); /* NULL is accepted */

/* In a collector: adds the samples of a worker. */
void worker_metrics_sample(struct worker_metrics *metrics, struct metrics_sink *sink,
                           const Sluice__Worker__V1__WorkerStatus *status);
