/* hf_tokenizer.h: reads tokenizer.json of Hugging Face's `tokenizers`. Private to engine/text. A
 * part that is not built is refused by its name. */
#pragma once

#include <stddef.h>

#include "engine/text/source/json_reader.h"

struct error;
struct text_facts;

/* Fills initialised facts. Texts are borrowed from the bytes. Errors name the part or the byte. */
int hf_tokenizer_read(const char *bytes, size_t n_bytes, struct text_facts *facts,
                      struct error *err);
/* Reads a vocabulary alone: an object of text to id. */
int hf_tokenizer_read_vocab(struct json_reader vocab, struct text_facts *facts, struct error *err);
