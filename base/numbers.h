/* numbers.h: parses option values that are a list ("1,8,32") or a range ("64-256") of whole
 * numbers. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

enum { NUMBERS_MAX = 32 };

struct numbers {
    size_t n;
    uint64_t values[NUMBERS_MAX]; /* in the order of the text; no duplicates */
};

struct number_range {
    uint64_t min, max; /* both ends belong to the range */
};

/* Parses a comma-separated list. Each number is in [min, max] and may end in K, M or G (powers of
 * 1024). INVALID_ARGUMENT names the option `name`, the bad part and the limits; a duplicate is an
 * error too. */
int numbers_parse(const char *name, const char *text, uint64_t min, uint64_t max,
                  struct numbers *out, struct error *err);
uint64_t numbers_max(const struct numbers *numbers); /* 0 if the list is empty */

/* "N", or "N-M" with N ≤ M; limits and errors as above. */
int number_range_parse(const char *name, const char *text, uint64_t min, uint64_t max,
                       struct number_range *out, struct error *err);
