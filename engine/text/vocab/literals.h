/* literals.h: matches tokens literally in text, the longest at each place. Private to engine/text.
 * Immutable once sorted; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct error;
struct vocab;

struct literal {
    const char *bytes;
    uint32_t n_bytes;
    uint32_t id;
};

struct literals {
    struct literal *rows;
    uint32_t n_rows, n_rows_max;
    uint32_t begin[257]; /* first row, by first byte */
};

/* Makes room for n literals in a zeroed struct. */
int literals_init(struct literals *lits, struct arena *arena, uint32_t n, struct error *err);
/* Adds a literal that is not empty. The bytes are borrowed. */
void literals_add(struct literals *lits, const char *bytes, uint32_t n_bytes, uint32_t id);
/* Call once, after the last literal. If literals are equal, the lowest id stays. */
void literals_sort(struct literals *lits);

static inline bool literals_may_begin(const struct literals *lits, char byte)
{
    unsigned char first = (unsigned char)byte;
    return lits->begin[first] < lits->begin[first + 1];
}

/* Id of the longest literal at text[0], or TOKENIZER_NO_ID. `control`: control tokens are matched,
 * too. *out_n_bytes is the literal's length. */
int32_t literals_match(const struct literals *lits, const struct vocab *vocab, const char *text,
                       size_t n_bytes, bool control, size_t *out_n_bytes);
