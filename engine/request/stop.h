/* stop.h: stop strings over a choice's text as it grows. Text that may be the beginning of a stop
 * string is held back, together with its ids: whatever was released is text and ids of the same
 * tokens. Whether and where a stop matches does not depend on how the text was cut into tokens: the
 * match that ends first wins, of those that end together the longest. One thread; the set may be
 * shared by many matchers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct stop_set;
struct stop_matcher;

enum { STOP_MAX_STRINGS = 4, STOP_MAX_BYTES = 256 };

/* Copies the strings; each 1..256 bytes (checked by the caller). n may be 0. *out_set is owned. */
int stop_set_create(const char *const *strings, uint32_t n, bool include_stop,
                    struct stop_set **out_set, struct error *err);
void stop_set_destroy(struct stop_set *set);
const char *stop_set_string(const struct stop_set *set, uint32_t i);
/* Index of the stop string that equals the bytes, or -1. `set` may be NULL. */
int32_t stop_set_find(const struct stop_set *set, const char *bytes, size_t n_bytes);

/* `set` is borrowed until destroy. */
int stop_matcher_create(const struct stop_set *set, struct stop_matcher **out_matcher,
                        struct error *err);
void stop_matcher_destroy(struct stop_matcher *matcher);

/* Ids that came together and share their text, which ends at byte `end`. Units without text join
 * the one before them, so there are at most as many as held bytes, and one. */
struct stop_unit {
    size_t end;
    uint32_t n_ids;
};

struct stop_delta {
    const char *text; /* released; borrowed until the next call */
    size_t n_bytes;
    uint32_t n_released;           /* ids, oldest first */
    int32_t i_matched;             /* stop string that ended the text, or -1 */
    const struct stop_unit *units; /* the released ids and where their text ends; as `text` */
    size_t n_units;
};

/* Takes the text of n_ids further ids (together: they share it; n_bytes or n_ids may be 0). While
 * not `armed` nothing matches and nothing is held back. After a match the matcher takes no more.
 * RESOURCE_EXHAUSTED where memory for held text cannot be had. */
int stop_matcher_push(struct stop_matcher *matcher, const char *text, size_t n_bytes,
                      uint32_t n_ids, bool armed, struct stop_delta *out_delta, struct error *err);
/* Other stop strings from here on, for text that is held and text to come. `set` is borrowed until
 * destroy. Releases what no longer may be the beginning of a stop string; the text may end. */
void stop_matcher_replace(struct stop_matcher *matcher, const struct stop_set *set, bool armed,
                          struct stop_delta *out_delta);
/* End of the text: releases all that is held. */
void stop_matcher_flush(struct stop_matcher *matcher, struct stop_delta *out_delta);
