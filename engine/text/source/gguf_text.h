/* gguf_text.h: reads the vocabulary of a GGUF file (tokenizer.ggml.*). Private to engine/text. */
#pragma once

struct checkpoint;
struct error;
struct text_facts;

/* Fills initialised facts. Texts are borrowed from the checkpoint. Errors name the key. */
int gguf_text_read(const struct checkpoint *ckpt, struct text_facts *facts, struct error *err);
