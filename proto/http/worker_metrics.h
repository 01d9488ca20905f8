/* worker_metrics.h: what a worker says of itself (WorkerStatus) as metrics. The worker shows its
 * own and the manager everybody's by the same table, so the two never differ in name or meaning. */
#pragma once

#include "sluice/worker/v1/worker.pb-c.h"

struct error;
struct metrics;
struct metrics_sink;
struct worker_metrics;

/* Adds the families. *out_metrics is owned. */
int worker_metrics_create(struct metrics *metrics, struct worker_metrics **out_metrics,
                          struct error *err);
void worker_metrics_destroy(struct worker_metrics *metrics); /* NULL is accepted */

/* In a collector: the samples of one worker. */
void worker_metrics_sample(struct worker_metrics *metrics, struct metrics_sink *sink,
                           const Sluice__Worker__V1__WorkerStatus *status);
