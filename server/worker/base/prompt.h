/* prompt.h: converts text and conversations to token ids. Pure functions on immutable objects.
 * Any request thread, never the engine's loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sluice/v1/inference.pb-c.h"

struct chat_template_limits;
struct chat_templates;
struct error;
struct strbuf;
struct token_list;
struct tokenizer;

/* Places in a rendered conversation where the literal of a control token begins but stays text.
 * These literals come from messages of users and tools. A zeroed guard is empty. */
struct prompt_guard {
    size_t *places; /* owned; ascending */
    size_t n;
};
void prompt_guard_fini(struct prompt_guard *guard);

/* Appends the rendered conversation to `out`, which must be empty. The chat's `template` chooses
 * among `templates`, unless the chat has a template of its own. FAILED_PRECONDITION (reason
 * NO_CHAT_TEMPLATE): the model has none. Errors name the field under `field` ("chat"). */
int prompt_render_chat(const struct chat_templates *templates,
                       const struct chat_template_limits *limits, const struct tokenizer *tok,
                       const Sluice__V1__Chat *chat, const char *field, int64_t now_unix_s,
                       struct strbuf *out, struct prompt_guard *out_guard, struct error *err);

/* Encodes a rendered conversation: special tokens are parsed except at guarded places, and none
 * are added. */
int prompt_encode_rendered(const struct tokenizer *tok, const struct strbuf *text,
                           const struct prompt_guard *guard, struct token_list *ids,
                           struct error *err);

/* Encodes the texts before and behind a gap as a prompt for the gap's text. The order is prefix
 * token, prefix, suffix token, suffix, middle token. No literal in the texts becomes a special
 * token. INVALID_ARGUMENT (field "suffix") where the model has no such tokens. */
int prompt_encode_gap(const struct tokenizer *tok, const char *prefix, const char *suffix,
                      struct token_list *ids, struct error *err);

/* Encodes a plain text. add_special: adds the tokens that the model expects around a text (BOS). */
int prompt_encode_text(const struct tokenizer *tok, const char *text, bool add_special,
                       bool parse_special, struct token_list *ids, struct error *err);
