/* pretokenizer.h: splits text into pieces that merges may not cross. The rules are patterns,
 * applied one after the other. Each pattern splits every piece into its matches and the text
 * between them. Private to engine/text. Immutable; any number of threads may split at once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;
struct pattern_scratch;
struct pretokenizer;
struct strbuf;
struct text_facts;

/* Keeps copies of the facts' steps. *out_pre is owned. UNIMPLEMENTED for an unsupported pattern. */
int pretokenizer_create(const struct text_facts *facts, struct pretokenizer **out_pre,
                        struct error *err);
void pretokenizer_destroy(struct pretokenizer *pre);

/* Receives one piece, never empty, borrowed for the call. A result other than 0 ends the split and
 * is returned. */
typedef int pretokenizer_piece_fn(void *user, const char *piece, size_t n_bytes, struct error *err);

/* Passes the pieces of a valid UTF-8 text to `on_piece`, in order. Unless a step removes its
 * matches, the pieces joined are the text. `stand_in` is scratch. RESOURCE_EXHAUSTED if a pattern's
 * match limit is exceeded. */
int pretokenizer_split(const struct pretokenizer *pre, struct pattern_scratch *scratch,
                       struct strbuf *stand_in, const char *text, size_t n_bytes,
                       pretokenizer_piece_fn *on_piece, void *user, struct error *err);
