/* near_name.h: finds the name that a mistyped word was meant to be: an option, a setting, a
 * command. Any thread. */
#pragma once

#include <stddef.h>

/* A search for the nearest name. */
struct near_name {
    const char *word;
    size_t n_word;
    const char
        *name; /* the nearest name so far, borrowed from near_name_try(); NULL: none is near */
    unsigned distance;
};

/* Starts a search. A name is near within 2 edits: a letter more, less or other, or two neighbours
 * that changed places. A word of 3 or 4 letters allows 1 edit. Shorter words, and words over 40
 * letters, have no near name. */
struct near_name near_name_of(const char *word);
/* Offers a name. In the word '_' counts as '-'. The first of equally near names counts. */
void near_name_try(struct near_name *near, const char *name);
