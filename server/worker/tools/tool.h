/* tool.h: the one-shot modes, which write a ToolReport. Each fills *report with messages in the
 * arena; on failure only *err. Single-threaded. */
#pragma once

#include "base/arena.h"
#include "sluice/worker/v1/report.pb-c.h"

struct checkpoint;
struct error;
struct model_info;
struct settings;
struct tokenizer;

int tool_inspect(const struct settings *settings, struct arena *arena,
                 Sluice__Worker__V1__ToolReport *report, struct error *err);
int tool_plan(const struct settings *settings, struct arena *arena,
              Sluice__Worker__V1__ToolReport *report, struct error *err);
/* Makes the plan of tool_plan() for an open checkpoint. `tok` NULL: reads the tokenizer of a
 * folder, because rows of the vocabulary without a token are not loaded. */
int tool_plan_make(const struct settings *settings, struct checkpoint *ckpt,
                   const struct tokenizer *tok, const struct model_info *model, struct arena *arena,
                   Sluice__V1__Plan **out_plan, struct error *err);
int tool_probe(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err);
int tool_bench(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err);
