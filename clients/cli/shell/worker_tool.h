/* worker_tool.h: runs a mode of sluice-worker (bench, probe, inspect), because this program does
 * not link the engine. Returns the worker's report. Single-threaded. */
#pragma once

#include <stdint.h>

#include "base/settings/load_settings.h"
#include "sluice/worker/v1/report.pb-c.h"

struct cli;
struct error;

enum { WORKER_TOOL_MAX_ARGS = 48 };

/* Runs the sluice-worker beside this program with argv[1..] (NULL-terminated; argv[0] is set here).
 * `kind` is the expected kind of report. Ctrl-C and SIGTERM end the worker early, with a partial
 * report. With a timeout the worker is killed after timeout_ms, and its stderr is discarded. With
 * timeout_ms 0 there is no timeout, and the worker inherits stderr. The caller owns *out_report
 * (rpc_message_free of its base). Fails with the worker's own error. */
int worker_tool_run(const char *argv[WORKER_TOOL_MAX_ARGS],
                    Sluice__Worker__V1__ToolReport__ResultCase kind, uint32_t timeout_ms,
                    Sluice__Worker__V1__ToolReport **out_report, struct error *err);

/* Appends "--flag=value" to argv for each load setting of `user`. Also for empty values, because
 * the worker's environment could set another value. The texts are owned: worker_tool_free_flags(),
 * also after an error. */
int worker_tool_add_flags(const struct cli *cli, enum load_user user,
                          char *flags[LOAD_SETTINGS_MAX], const char *argv[WORKER_TOOL_MAX_ARGS],
                          struct error *err);
void worker_tool_free_flags(char *flags[LOAD_SETTINGS_MAX]);
