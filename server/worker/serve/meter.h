/* meter.h: a worker's measurements of its requests, its /metrics, and the log line of each
 * request. Any thread. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/trace.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct engine_usage;
struct error;
struct stream_request;
struct worker;
struct worker_meter;

/* The identity of a request in log lines, from its submit frame. */
struct request_label {
    char request_id[129];
    struct trace_context trace; /* span of the server; empty if the server sent none */
};
void meter_label_set(struct request_label *label, const Sluice__Worker__V1__Submit *submit);

/* *out_meter is owned. */
int worker_meter_create(struct worker_meter **out_meter, struct error *err);
void worker_meter_destroy(struct worker_meter *meter); /* NULL is accepted */

/* Records a request that the engine has ended. `outcome` is "ok", "failed", "cancelled" or
 * "expired". */
void worker_meter_end(struct worker *worker, const struct stream_request *request,
                      const struct engine_usage *usage, const char *outcome);
/* Logs a request that never reached the engine. */
void worker_meter_refused(const struct stream_request *request, const struct error *why);

/* Fills the histograms of the counters; memory from the arena. */
void worker_meter_fill(const struct worker_meter *meter, struct arena *arena,
                       Sluice__Worker__V1__WorkerCounters *counters);

/* Serves /metrics and /healthz on `address`. The worker continues if this fails. */
int worker_meter_listen(struct worker *worker, const char *address, struct error *err);
/* Stops serving /metrics. Call it before the worker's parts are destroyed. */
void worker_meter_close(struct worker_meter *meter);
