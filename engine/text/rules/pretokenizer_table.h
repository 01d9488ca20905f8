/* pretokenizer_table.h: the rules that the names in tokenizer.ggml.pre stand for. Private to
 * engine/text. Stateless; any thread. */
#pragma once

#include <stdbool.h>

struct error;
struct split_step;
struct text_facts;

/* Fills the facts' splits, normalization and whole_first, and add_bos as the default of the name.
 * UNIMPLEMENTED (PRE_TOKENIZER_UNKNOWN) for a name that is not in the table. */
int pretokenizer_table_find(const char *name, struct text_facts *facts, struct error *err);
/* The pattern of GPT-2, which "ByteLevel" stands for in other files. */
const char *pretokenizer_table_gpt2(void);
/* Replaces a foreign pattern that groups digits from the right by its name (TEXT_GROUPS): as a
 * pattern, it takes quadratic time. */
void pretokenizer_table_simplify(struct split_step *step);
