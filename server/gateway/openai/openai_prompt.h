/* openai_prompt.h: the prompts of /v1/completions: a text, texts, ids, or lists of ids. Plain
 * functions; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct http_body;

enum { OPENAI_MAX_PROMPTS = 64 };

/* A prompt: a text, or ids. */
struct openai_prompt {
    const char *text; /* NULL: ids */
    uint32_t *ids;
    size_t n_ids;
};

struct openai_prompts {
    struct openai_prompt *list; /* in the body's arena */
    size_t n;
};

/* Reads the value of "prompt". Errors are as in http_body.h. */
int openai_prompt_read(struct http_body *body, struct openai_prompts *out);
