/* tool.h: the one-shot modes of sluice-worker (inspect, plan, probe). A hostile model file is
 * parsed only in such a process. The process gets no descriptor but its launch record, and no
 * writable files. Its CPU time, wall time and output are bounded. Its answer is one message,
 * checked like a message from the network. Loop thread only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"

struct error;
struct ev_loop;
struct tool_runner;

struct tool_config {
    struct ev_loop *loop;
    const char *program;      /* sluice-worker, absolute */
    char *const *environment; /* borrowed until destroy */
    uint64_t timeout_ms;
    uint32_t max_running; /* more tools than this wait; 0: 4 */
    uint32_t max_waiting; /* 0: 64 */
};

int tool_runner_create(const struct tool_config *config, struct tool_runner **out_runner,
                       struct error *err);
/* Kills running tools; their done functions are called with CANCELLED. NULL is accepted. */
void tool_runner_destroy(struct tool_runner *runner);

/* Called exactly once at the end of a run. `report` (borrowed for the call) holds a result; NULL
 * where status->status is not 0. The status is the tool's own error or one of these:
 * DEADLINE_EXCEEDED, INTERNAL (no report), RESOURCE_EXHAUSTED (output over 16 MiB). */
typedef void tool_done_fn(void *arg, const pb_tool *report, const struct error *status);

/* `arguments` (copied): mode and flags without the program, NULL-terminated. `record` (copied): the
 * launch record; NULL: none. RESOURCE_EXHAUSTED (TOO_MANY_TOOLS) where too many tools wait. */
int tool_run(struct tool_runner *runner, const char *const *arguments, const pb_launch *record,
             tool_done_fn *done, void *arg, struct error *err);
