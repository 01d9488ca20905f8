/* spm_model.h: reads SentencePiece's tokenizer.model (sentencepiece_model.proto). Private to
 * engine/text. Trusts nothing: every length is checked against the bytes that are left. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;
struct text_facts;

/* True if the bytes begin as SentencePiece's writer begins a model. */
bool spm_model_is(const char *bytes, size_t n_bytes);

/* Fills initialised facts. Texts are borrowed from the bytes. Errors name the byte. */
int spm_model_read(const char *bytes, size_t n_bytes, struct text_facts *facts, struct error *err);
