/* openai_prompt.h: the prompts of /v1/completions: a text, texts, ids, or lists of ids. Plain
 * functions; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/gateway/http/http_fields.h"

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

/* Reads the value of a row (http_fields.h), whose place is a struct openai_prompts. */
http_field_fn openai_prompt_read;
