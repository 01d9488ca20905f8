/* request_build.h: a submit frame as the engine's request. Pure translation: limits are the
 * engine's to check. */
#pragma once

#include "base/arena.h"
#include "engine/engine.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct error;
struct token_list;
struct tokenizer;
struct worker;

/* Fields that are declared but not built: UNIMPLEMENTED with the name. */
int request_build_check(const Sluice__V1__GenerateRequest *request, struct error *err);

/* Appends the prompt's ids: those of the resume state, else the request's ids, text or chat, of
 * which output.truncate keeps the last. Runs the template and the tokenizer. */
int request_build_prompt(struct worker *worker, struct engine *engine,
                         const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                         uint32_t *out_n_truncated, struct error *err);

/* Fills *out_request; arrays are borrowed from the submit frame or the arena. The prompt, deadline
 * and user_data are the caller's to set. */
int request_build(const Sluice__Worker__V1__Submit *submit, const struct tokenizer *tok,
                  struct arena *arena, struct engine_request *out_request, struct error *err);
