/* meter.h: what a worker measures of its requests, its /metrics, and the line that each request
 * leaves in its log. Any thread. */
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

/* Of a request, from its submit frame on: what its lines in the log name it by. */
struct request_label {
    char request_id[129];
    struct trace_context trace; /* of the server's span; empty where it sent none */
};
void meter_label_set(struct request_label *label, const Sluice__Worker__V1__Submit *submit);

/* *out_meter is owned. */
int worker_meter_create(struct worker_meter **out_meter, struct error *err);
void worker_meter_destroy(struct worker_meter *meter); /* NULL is accepted */

/* The engine is done with a request, as `outcome` says ("ok", "failed", "cancelled", "expired"). */
void worker_meter_end(struct worker *worker, const struct stream_request *request,
                      const struct engine_usage *usage, const char *outcome);
/* It never reached the engine. */
void worker_meter_refused(const struct stream_request *request, const struct error *why);

/* The counters' histograms, in the arena. */
void worker_meter_fill(const struct worker_meter *meter, struct arena *arena,
                       Sluice__Worker__V1__WorkerCounters *counters);

/* Serves /metrics and /healthz on `address`. The worker serves on where that fails. */
int worker_meter_listen(struct worker *worker, const char *address, struct error *err);
/* Before the worker's parts go. */
void worker_meter_close(struct worker_meter *meter);
