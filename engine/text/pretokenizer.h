/* pretokenizer.h: splits text into pieces that merges may not cross, by the rules that
 * tokenizer.ggml.pre names. The rules are regular expressions, applied one after the other. Each
 * expression splits every piece into its matches and the text between them. Immutable; any number
 * of threads may split at once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;
struct pretokenizer;

/* UNIMPLEMENTED for a name that is not in the table. *out_pre is owned. */
int pretokenizer_create(const char *name, struct pretokenizer **out_pre, struct error *err);
void pretokenizer_destroy(struct pretokenizer *pre);

/* True if a piece that is a whole token becomes that token, without merges. */
bool pretokenizer_ignores_merges(const struct pretokenizer *pre);
/* True if prompts start with bos where the file does not say. */
bool pretokenizer_adds_bos(const struct pretokenizer *pre);

/* Scratch of one thread; reusable for further texts. */
struct pretokenizer_scratch;
int pretokenizer_scratch_create(struct pretokenizer_scratch **out_scratch, struct error *err);
void pretokenizer_scratch_destroy(struct pretokenizer_scratch *scratch);

/* Receives one piece, never empty, borrowed for the call. A result other than 0 ends the split and
 * is returned. */
typedef int pretokenizer_piece_fn(void *user, const char *piece, size_t n_bytes, struct error *err);

/* Passes the pieces of a valid UTF-8 text to `on_piece`, in order; joined, they are the text.
 * RESOURCE_EXHAUSTED if a pattern's match limit is exceeded. */
int pretokenizer_split(const struct pretokenizer *pre, struct pretokenizer_scratch *scratch,
                       const char *text, size_t n_bytes, pretokenizer_piece_fn *on_piece,
                       void *user, struct error *err);
