/* tool.h: the one-shot modes of sluice-worker (inspect, plan, probe). A hostile model file is
 * parsed in such a process and nowhere else: it gets no descriptors, no writable files, bounded CPU
 * time, wall time and output, and its answer is one message that is checked like one from the
 * network. Loop thread only. */
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
    uint32_t max_running; /* further ones wait; 0: 4 */
    uint32_t max_waiting; /* 0: 64 */
};

int tool_runner_create(const struct tool_config *config, struct tool_runner **out_runner,
                       struct error *err);
/* Kills what runs; the done functions are called with CANCELLED. NULL is accepted. */
void tool_runner_destroy(struct tool_runner *runner);

/* The end of a run, exactly once. `report` (borrowed for the call) holds one of the results and is
 * NULL where status->status is not 0: the tool's own error, or DEADLINE_EXCEEDED, INTERNAL (it
 * ended without a report), RESOURCE_EXHAUSTED (output over 16 MiB). */
typedef void tool_done_fn(void *arg, const pb_tool *report, const struct error *status);

/* `arguments` (copied): mode and flags, without the program, NULL-terminated. RESOURCE_EXHAUSTED
 * (TOO_MANY_TOOLS) where too many wait. */
int tool_run(struct tool_runner *runner, const char *const *arguments, tool_done_fn *done,
             void *arg, struct error *err);
