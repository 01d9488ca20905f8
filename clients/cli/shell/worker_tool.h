/* worker_tool.h: runs a mode of sluice-worker (bench, probe, inspect), which has the engine that
 * this program has not, and takes its report. One thread. */
#pragma once

#include <stdint.h>

#include "sluice/worker/v1/report.pb-c.h"

struct error;

enum { WORKER_TOOL_MAX_ARGS = 48 };

/* Runs the sluice-worker beside this program with argv[1..] (NULL-terminated; argv[0] is set here).
 * `kind` is the report that is expected of it. Ctrl-C and SIGTERM end it early with a report of
 * what there is. With a timeout (0: none) it is killed at its end, and its stderr is nobody's; else
 * that is ours. *out_report is owned (rpc_message_free of its base). Fails with the worker's own
 * error. */
int worker_tool_run(const char *argv[WORKER_TOOL_MAX_ARGS],
                    Sluice__Worker__V1__ToolReport__ResultCase kind, uint32_t timeout_ms,
                    Sluice__Worker__V1__ToolReport **out_report, struct error *err);
