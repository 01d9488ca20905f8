/* tool.h: the one-shot modes, which write a ToolReport. Each fills *report with messages in the
 * arena; on failure only *err. Single-threaded. */
#pragma once

#include "base/arena.h"
#include "sluice/worker/v1/report.pb-c.h"

struct error;
struct settings;

int tool_inspect(const struct settings *settings, struct arena *arena,
                 Sluice__Worker__V1__ToolReport *report, struct error *err);
int tool_plan(const struct settings *settings, struct arena *arena,
              Sluice__Worker__V1__ToolReport *report, struct error *err);
int tool_probe(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err);
int tool_bench(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err);
