/* request_build.h: translates a submit frame to the engine's request. The engine checks the
 * limits. */
#pragma once

#include "base/arena.h"
#include "engine/engine.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct error;
struct token_list;
struct tokenizer;
struct worker;

/* UNIMPLEMENTED, with the field's name, for fields that are declared but not supported. */
int request_build_check(const Sluice__V1__GenerateRequest *request, struct error *err);

/* Appends the prompt's ids: those of the resume state, else those of the request's ids, text or
 * chat. The field output.truncate keeps the last ids. Runs the template and the tokenizer. */
int request_build_prompt(struct worker *worker, struct engine *engine,
                         const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                         uint32_t *out_n_truncated, struct error *err);

/* Fills *out_request; its arrays are borrowed from the submit frame or the arena. The caller
 * sets prompt, deadline and user_data. */
int request_build(const Sluice__Worker__V1__Submit *submit, const struct tokenizer *tok,
                  struct arena *arena, struct engine_request *out_request, struct error *err);
