/* tokenizer_config.h: reads what stands beside a vocabulary in a Hugging Face folder: special
 * tokens, ids that end a generation, chat templates. Private to engine/text. */
#pragma once

struct error;
struct text_facts;
struct tokenizer_folder;

/* Completes facts that a vocabulary's reader filled. Errors name the file and the byte. */
int tokenizer_config_read(const struct tokenizer_folder *folder, struct text_facts *facts,
                          struct error *err);
