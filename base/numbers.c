#include "base/numbers.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"

enum { SHOWN = 40 }; /* an error message shows at most this many bytes of a bad value */

/* Parses a whole number, which may end with K, M or G (powers of 1024). The number must fill all n
 * bytes. *out_fits is true if 64 bits hold it; otherwise *out is UINT64_MAX. Returns false if the
 * text is not a number. */
static bool read_number(const char *text, size_t n, uint64_t *out, bool *out_fits)
{
    static const char units[] = "KMG";
    unsigned shift = 0;
    uint64_t value = 0;
    bool fits = true;
    const char *unit = n > 1 ? memchr(units, text[n - 1], sizeof(units) - 1) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned digit = (unsigned)(text[i] - '0');
        if (digit > 9)
            return false;
        fits = fits && value <= (UINT64_MAX - digit) / 10;
        value = value * 10 + digit;
    }
    fits = fits && value <= UINT64_MAX >> shift;
    *out = fits ? value << shift : UINT64_MAX;
    *out_fits = fits;
    return n > 0;
}

static int parse_in_limits(const char *name, const char *text, size_t n, const uint64_t limits[2],
                           uint64_t *out, struct error *err)
{
    bool fits;
    if (!read_number(text, n, out, &fits))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: \"%.*s\" is not a whole number", name,
                         n < SHOWN ? (int)n : SHOWN, text);
    if (!fits || *out < limits[0] || *out > limits[1])
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%s: %.*s is not between %" PRIu64 " and %" PRIu64, name, (int)n, text,
                         limits[0], limits[1]);
    return 0;
}

int numbers_parse(const char *name, const char *text, uint64_t min, uint64_t max,
                  struct numbers *out, struct error *err)
{
    const uint64_t limits[2] = {min, max};
    struct numbers list = {0};
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        uint64_t value;
        int rc = parse_in_limits(name, at, n, limits, &value, err);
        if (rc)
            return rc;
        for (size_t i = 0; i < list.n; i++)
            if (list.values[i] == value)
                return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: %" PRIu64 " is given twice",
                                 name, value);
        if (list.n == NUMBERS_MAX)
            return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: more than %d numbers", name,
                             NUMBERS_MAX);
        list.values[list.n++] = value;
        at += n;
        if (!*at)
            break;
    }
    *out = list;
    return 0;
}

uint64_t numbers_max(const struct numbers *numbers)
{
    uint64_t max = 0;
    for (size_t i = 0; i < numbers->n; i++)
        max = numbers->values[i] > max ? numbers->values[i] : max;
    return max;
}

int number_range_parse(const char *name, const char *text, uint64_t min, uint64_t max,
                       struct number_range *out, struct error *err)
{
    const uint64_t limits[2] = {min, max};
    struct number_range range;
    size_t n = strcspn(text, "-");
    int rc = parse_in_limits(name, text, n, limits, &range.min, err);
    if (rc)
        return rc;
    range.max = range.min;
    if (text[n])
        rc = parse_in_limits(name, text + n + 1, strlen(text + n + 1), limits, &range.max, err);
    if (rc)
        return rc;
    if (range.min > range.max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%s: %" PRIu64 "-%" PRIu64 " ends before it begins", name, range.min,
                         range.max);
    *out = range;
    return 0;
}
