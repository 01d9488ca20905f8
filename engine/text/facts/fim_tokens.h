/* fim_tokens.h: finds the tokens that mark the parts of a fill-in-the-middle prompt. A GGUF file
 * names their ids; else their known texts decide. Private to engine/text. */
#pragma once

struct text_facts;

/* Completes facts->fim_ids. Ids that the reader has set stay, if prefix, suffix and middle are
 * set. Otherwise prefix, suffix and middle come from one family, or from none. */
void fim_tokens_find(struct text_facts *facts);
