/* bench_worker.h: runs `sluice-worker bench`, which has the engine that this program has not, and
 * takes its report. One thread. */
#pragma once

#include "sluice/worker/v1/report.pb-c.h"

struct error;

enum { BENCH_WORKER_MAX_ARGS = 48 };

/* Runs the sluice-worker beside this program with argv[1..] (NULL-terminated; argv[0] is set here),
 * its stderr being ours. Ctrl-C and SIGTERM end it early with a report of what there is.
 * *out_report is owned (rpc_message_free of its base). Fails with the worker's own error. */
int bench_worker_run(const char *argv[BENCH_WORKER_MAX_ARGS],
                     Sluice__Worker__V1__ToolReport **out_report, struct error *err);
