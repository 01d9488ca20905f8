/* sim_tool.c: the one-shot tools (manager/host/tool.h). Their reports are made up, and some tools
 * fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "manager/host/tool.h"
#include "tests/sim/sim.h"

struct tool_runner {
    int unused;
};

int tool_runner_create(const struct tool_config *config, struct tool_runner **out_runner,
                       struct error *err)
{
    (void)config;
    *out_runner = calloc(1, sizeof(**out_runner));
    return *out_runner ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

void tool_runner_destroy(struct tool_runner *runner)
{
    struct error err;
    error_set(&err, STATUS_CANCELLED, "the manager is stopping");
    for (size_t i = 0; i < sim.n_tools; i++)
        sim.tools[i].done(sim.tools[i].arg, NULL, &err);
    sim.n_tools = 0;
    free(runner);
}

int tool_run(struct tool_runner *runner, const char *const *arguments, const pb_launch *record,
             tool_done_fn *done, void *arg, struct error *err)
{
    (void)runner;
    (void)record;
    if (sim.n_tools == SIM_MAX_TOOLS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "too many tools");
    struct sim_tool *tool = &sim.tools[sim.n_tools++];
    *tool = (struct sim_tool){.used = true,
                              .done = done,
                              .arg = arg,
                              .at_ns = sim.now_ns + (int64_t)sim_below(400) * NS_PER_MS,
                              .fails = !sim.quiet_phase && sim_chance(10),
                              .odd = !sim.quiet_phase && sim_chance(40)};
    if (!sim.quiet_phase && sim_chance(20))
        tool->fault = 1 + sim_below(N_TOOL_FAULTS - 1);
    snprintf(tool->mode, sizeof(tool->mode), "%s", arguments[0]);
    return 0;
}

static void inspect(const struct sim_tool *tool, const struct error *ok)
{
    static char digest[65] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    static char unsupported[] = "an architecture that nobody knows";
    pb_tool report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__Worker__V1__InspectReport inspected = SLUICE__WORKER__V1__INSPECT_REPORT__INIT;
    Sluice__Worker__V1__ModelFile file = SLUICE__WORKER__V1__MODEL_FILE__INIT;
    Sluice__Worker__V1__ModelFile *files[] = {&file};
    pb_info info = SLUICE__V1__MODEL_INFO__INIT;
    static char other[65] = "f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    if (tool->fault != TOOL_TELLS_NO_DIGEST)
        info.weights_digest = digest;
    info.trained_context_length = 4096;
    info.weight_bytes = 500000;
    info.n_layers = info.n_kv_heads = info.head_dim = 2;
    inspected.info = &info;
    file.sha256 = tool->fault == TOOL_SEES_OTHER_CONTENTS || tool->odd ? other : digest;
    file.size_bytes = 3;
    inspected.files = files;
    inspected.n_files = 1;
    if (tool->odd)
        inspected.unsupported_reason = unsupported;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT;
    report.inspect = &inspected;
    tool->done(tool->arg, &report, ok);
}

static void probe(const struct sim_tool *tool, const struct error *ok)
{
    pb_tool report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__Worker__V1__ProbeReport probed = SLUICE__WORKER__V1__PROBE_REPORT__INIT;
    pb_device devices[4], *all[4];
    static char names[4][8] = {"cpu:0", "cpu:1", "cuda:0", "cuda:1"};
    for (uint32_t i = 0; i < 4; i++) {
        sluice__v1__device__init(&devices[i]);
        devices[i].name = names[i];
        devices[i].kind = i < 2 ? SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU
                                : SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
        devices[i].index = i % 2;
        devices[i].memory_total_bytes = 1ULL << (tool->odd ? 35 : 34);
        all[i] = &devices[i];
    }
    probed.devices = all;
    static char why[] = "its driver does not answer";
    if (tool->fault == TOOL_SEES_ONE_UNUSABLE)
        devices[3].unusable_reason = why;
    probed.n_devices = tool->fault == TOOL_MISSES_A_DEVICE ? 3 : 4;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE;
    report.probe = &probed;
    tool->done(tool->arg, &report, ok);
}

/* Answers with a plan that fits, or that lacks part of a replica's memory. */
static void plan(const struct sim_tool *tool, const struct error *ok)
{
    static char cpu[] = "cpu:0";
    pb_tool report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__V1__Plan planned = SLUICE__V1__PLAN__INIT;
    Sluice__V1__DevicePlan device = SLUICE__V1__DEVICE_PLAN__INIT, *devices[] = {&device};
    device.device = cpu;
    device.weight_bytes = device.kv_bytes = 500000;
    device.missing_bytes = tool->odd ? 500000 : 0;
    planned.devices = devices;
    planned.n_devices = 1;
    planned.fits = !tool->odd;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PLAN;
    report.plan = &planned;
    tool->done(tool->arg, &report, ok);
}

void sim_tool_step(size_t i)
{
    struct sim_tool tool = sim.tools[i];
    struct error status;
    sim.tools[i] = sim.tools[--sim.n_tools];
    error_clear(&status);
    if (tool.fails) {
        error_set(&status, STATUS_INTERNAL, "the tool ended without a report");
        tool.done(tool.arg, NULL, &status);
    } else if (tool.fault == TOOL_REFUSES_THE_FILE) {
        error_set(&status, STATUS_INVALID_ARGUMENT, "no model can be read from it");
        tool.done(tool.arg, NULL, &status);
    } else if (tool.fault == TOOL_REPORTS_ANOTHER) {
        pb_tool report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
        tool.done(tool.arg, &report, &status);
    } else if (strcmp(tool.mode, "inspect") == 0) {
        inspect(&tool, &status);
    } else if (strcmp(tool.mode, "plan") == 0) {
        plan(&tool, &status);
    } else {
        probe(&tool, &status);
    }
}
