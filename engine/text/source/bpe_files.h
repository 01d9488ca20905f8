/* bpe_files.h: reads the vocabulary of a folder without tokenizer.json: vocab.json and merges.txt.
 * The tokenizer's class decides the rules. Private to engine/text. */
#pragma once

struct error;
struct text_facts;
struct tokenizer_folder;

/* The class is tokenizer_class of tokenizer_config.json; without one, that of the architecture.
 * UNIMPLEMENTED (TOKENIZER_UNSUPPORTED) names a class whose rules are not built. */
int bpe_files_read(const struct tokenizer_folder *folder, struct text_facts *facts,
                   struct error *err);
