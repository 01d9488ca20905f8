/* normalizer.h: changes the text of a prompt before it is split, step by step. Private to
 * engine/text. Immutable; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct normalizer;
struct pattern_scratch;
struct strbuf;
struct text_facts;

/* Keeps copies of the facts' steps. *out_normalizer is owned; NULL if there are no steps. */
int normalizer_create(const struct text_facts *facts, struct normalizer **out_normalizer,
                      struct error *err);
void normalizer_destroy(struct normalizer *normalizer);

/* 0 for NULL. */
uint32_t normalizer_n_steps(const struct normalizer *normalizer);
/* Place of a text in its prompt. */
enum normalizer_place {
    NORMALIZER_INSIDE,  /* after other parts of the same text */
    NORMALIZER_FIRST,   /* the text begins the prompt */
    NORMALIZER_GOES_ON, /* the text continues an earlier text, so no space is added before */
};

/* Applies steps [first, end) to the valid UTF-8 in *text. `spare` is scratch. */
int normalizer_apply(const struct normalizer *normalizer, uint32_t first, uint32_t end,
                     struct pattern_scratch *scratch, enum normalizer_place place,
                     struct strbuf *text, struct strbuf *spare, struct error *err);
