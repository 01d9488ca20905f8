/* stop.h: finds stop strings in a choice's text as it grows. Text that may begin a stop string is
 * held back together with its ids. So released text and released ids always belong to the same
 * tokens. Matches do not depend on how the text was cut into tokens. The match that ends first
 * wins; if several end together, the longest. Single-threaded; many matchers may share one set. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct stop_set;
struct stop_matcher;

enum { STOP_MAX_STRINGS = 4, STOP_MAX_BYTES = 256 };

/* Copies the strings, each 1..256 bytes (checked by the caller). n may be 0. *out_set is owned. */
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

/* Ids that were pushed together and share their text, which ends at byte `end`. A unit without text
 * joins the unit before it. So there is at most one unit more than held bytes. */
struct stop_unit {
    size_t end;
    uint32_t n_ids;
};

struct stop_delta {
    const char *text; /* released text; borrowed until the next call */
    size_t n_bytes;
    uint32_t n_released; /* number of released ids, oldest first */
    int32_t i_matched;   /* stop string that ended the text, or -1 */
    /* released ids and the ends of their text; borrowed like `text` */
    const struct stop_unit *units;
    size_t n_units;
};

/* Takes the text of n_ids further ids, which share the text; n_bytes or n_ids may be 0. If `armed`
 * is false, nothing matches and nothing is held back. After a match, further text is ignored.
 * RESOURCE_EXHAUSTED without memory for held text. */
int stop_matcher_push(struct stop_matcher *matcher, const char *text, size_t n_bytes,
                      uint32_t n_ids, bool armed, struct stop_delta *out_delta, struct error *err);
/* Replaces the stop strings for held and later text. `set` is borrowed until destroy. Releases held
 * text that no longer begins a stop string. A new string may match in held text. */
void stop_matcher_replace(struct stop_matcher *matcher, const struct stop_set *set, bool armed,
                          struct stop_delta *out_delta);
/* End of the text: releases all held text. */
void stop_matcher_flush(struct stop_matcher *matcher, struct stop_delta *out_delta);
