/* numbers.h: whole numbers written as a list ("1,8,32") or as a range ("64-256"): the values of
 * options that ask for several. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

enum { NUMBERS_MAX = 32 };

struct numbers {
    size_t n;
    uint64_t values[NUMBERS_MAX]; /* in the order written, each once */
};

struct number_range {
    uint64_t min, max; /* both may be drawn */
};

/* A list parted by commas, each number in [min, max], with K, M or G for powers of 1024.
 * INVALID_ARGUMENT names the option `name`, the place and the limits; a number that stands twice is
 * refused too. */
int numbers_parse(const char *name, const char *text, uint64_t min, uint64_t max,
                  struct numbers *out, struct error *err);
uint64_t numbers_max(const struct numbers *numbers); /* 0 where it is empty */

/* "N", or "N-M" with N ≤ M; limits and errors as above. */
int number_range_parse(const char *name, const char *text, uint64_t min, uint64_t max,
                       struct number_range *out, struct error *err);
