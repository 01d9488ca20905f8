/* tokenizer_private.h: shared by tokenizer.c (encoding) and tokenizer_open.c (loading). */
#pragma once

#include "engine/text/tokenizer.h"
#include "engine/text/vocab/bpe.h"
#include "engine/text/vocab/literals.h"
#include "engine/text/vocab/vocab.h"

struct normalizer;
struct pretokenizer;
struct text_facts;

struct tokenizer {
    struct tokenizer_info info;
    struct vocab vocab;
    struct bpe bpe;
    struct normalizer *normalizer; /* NULL: the text stays */
    uint32_t n_before_literals;    /* steps before `normalized` is matched */
    struct pretokenizer *pre;
    struct literals raw;        /* matched in the text */
    struct literals normalized; /* matched after the first steps of the normalizer */
    bool whole_first, whole_newlines, by_characters;
};

/* Builds a tokenizer from facts, which may be freed afterwards. */
int tokenizer_open_facts(struct text_facts *facts, struct tokenizer **out_tokenizer,
                         struct error *err);
