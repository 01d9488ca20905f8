/* tiktoken_file.h: reads vocabularies of tiktoken and tekken: bytes with a rank. Private to
 * engine/text. */
#pragma once

#include <stddef.h>

struct error;
struct text_facts;

/* Fill initialised facts. Errors name the line or the byte.
 *
 * A tiktoken file has lines "base64 rank", and neither special tokens nor a pattern. The number of
 * ranks decides both where no other file names them. */
int tiktoken_file_read(const char *bytes, size_t n_bytes, struct text_facts *facts,
                       struct error *err);
/* tekken.json. */
int tiktoken_file_read_tekken(const char *bytes, size_t n_bytes, struct text_facts *facts,
                              struct error *err);
