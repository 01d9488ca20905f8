/* pretokenizer.h: cuts text into the pieces that merges may not cross, by the rules that a model's
 * tokenizer.ggml.pre names. The rules are regular expressions applied one after the other: each
 * splits every piece it is given into its matches and the text between them. Immutable; any number
 * of threads split at once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;
struct pretokenizer;

/* UNIMPLEMENTED for a name that is not in the table. *out_pre is owned. */
int pretokenizer_create(const char *name, struct pretokenizer **out_pre, struct error *err);
void pretokenizer_destroy(struct pretokenizer *pre);

/* A piece that is a token as a whole is taken as it is, merges or not. */
bool pretokenizer_ignores_merges(const struct pretokenizer *pre);
/* Whether prompts start with bos where the file does not say. */
bool pretokenizer_adds_bos(const struct pretokenizer *pre);

/* What one thread needs to split; reused from text to text. */
struct pretokenizer_scratch;
int pretokenizer_scratch_create(struct pretokenizer_scratch **out_scratch, struct error *err);
void pretokenizer_scratch_destroy(struct pretokenizer_scratch *scratch);

/* One piece, never empty, borrowed for the call. A non-zero result ends the split and is returned.
 */
typedef int pretokenizer_piece_fn(void *user, const char *piece, size_t n_bytes, struct error *err);

/* Hands the pieces of a valid UTF-8 text to `on_piece` in order; together they are the text.
 * RESOURCE_EXHAUSTED where a pattern's match limit is met. */
int pretokenizer_split(const struct pretokenizer *pre, struct pretokenizer_scratch *scratch,
                       const char *text, size_t n_bytes, pretokenizer_piece_fn *on_piece,
                       void *user, struct error *err);
