/* prompt.h: text and conversations to token ids. Pure functions on immutable objects: any request
 * thread, never the engine's loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sluice/v1/inference.pb-c.h"

struct chat_template;
struct chat_template_limits;
struct error;
struct strbuf;
struct token_list;
struct tokenizer;

/* Literals of control tokens in what a user or a tool said are text and stay it: places in a
 * rendered conversation where such a literal begins and means nothing. A zeroed one is empty. */
struct prompt_guard {
    size_t *places; /* owned; ascending */
    size_t n;
};
void prompt_guard_fini(struct prompt_guard *guard);

/* Appends the rendered conversation to `out`, which is empty. `template` may be NULL:
 * FAILED_PRECONDITION (reason NO_CHAT_TEMPLATE) unless the chat brings its own. Errors name the
 * field under `field` ("chat").
 */
int prompt_render_chat(const struct chat_template *template,
                       const struct chat_template_limits *limits, const struct tokenizer *tok,
                       const Sluice__V1__Chat *chat, const char *field, int64_t now_unix_s,
                       struct strbuf *out, struct prompt_guard *out_guard, struct error *err);

/* Ids of a rendered conversation: its special tokens count but where it is guarded, nothing is
 * added. */
int prompt_encode_rendered(const struct tokenizer *tok, const struct strbuf *text,
                           const struct prompt_guard *guard, struct token_list *ids,
                           struct error *err);

/* Ids of a plain text. add_special: with what the model wants around it (BOS). */
int prompt_encode_text(const struct tokenizer *tok, const char *text, bool add_special,
                       bool parse_special, struct token_list *ids, struct error *err);
