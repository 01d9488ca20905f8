/* tokenizer_folder.h: the files of a model's folder that describe its tokenizer. Plain data. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Most named chat templates of a model, beside the default one. A note names the first template
 * beyond them. */
enum { TOKENIZER_MAX_TEMPLATES = 15 };

struct tokenizer_file {
    const char *bytes; /* borrowed for the call; NULL: there is no such file */
    size_t n_bytes;
};

/* The vocabulary comes from the first of these that is there: tekken, tokenizer_json,
 * tokenizer_model, tiktoken, vocab_json with merges. The other files add special tokens, ids and
 * chat templates. */
struct tokenizer_folder {
    const char *name;                      /* the folder's name, for messages */
    const char *architecture;              /* name in config.json; NULL if unknown */
    struct tokenizer_file tekken;          /* tekken.json */
    struct tokenizer_file tokenizer_json;  /* tokenizer.json */
    struct tokenizer_file tokenizer_model; /* tokenizer.model: of SentencePiece or tiktoken */
    struct tokenizer_file tiktoken;        /* tiktoken.model */
    struct tokenizer_file vocab_json;      /* vocab.json */
    struct tokenizer_file merges;          /* merges.txt */
    struct tokenizer_file tokenizer_config, added_tokens, special_tokens_map; /* NAME.json */
    struct tokenizer_file chat_template;      /* chat_template.jinja */
    struct tokenizer_file chat_template_json; /* chat_template.json */
    /* additional_chat_templates/NAME.jinja */
    struct tokenizer_file templates[TOKENIZER_MAX_TEMPLATES];
    const char *template_names[TOKENIZER_MAX_TEMPLATES];
    uint32_t n_templates;
    const char *dropped_template; /* name of the first one beyond the limit; NULL: there is none */
    /* Ids that end a generation, from config.json and generation_config.json; borrowed. */
    const uint32_t *end_ids;
    uint32_t n_end_ids;
};
