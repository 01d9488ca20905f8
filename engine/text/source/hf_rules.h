/* hf_rules.h: the rules of tokenizer.json: normalizer, pre-tokenizer, decoder, post-processor.
 * Private to engine/text. */
#pragma once

struct error;
struct json_reader;
struct text_facts;

/* Each takes a reader at its part, which may be null. UNIMPLEMENTED names what is not built. */
int hf_rules_normalizer(struct json_reader part, struct text_facts *facts, struct error *err);
int hf_rules_pre_tokenizer(struct json_reader part, struct text_facts *facts, struct error *err);
int hf_rules_decoder(struct json_reader part, struct text_facts *facts, struct error *err);
int hf_rules_post_processor(struct json_reader part, struct text_facts *facts, struct error *err);
