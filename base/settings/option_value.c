#include "base/settings/option_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/settings/options.h"

#define MAX_MS UINT64_C(1000000000000000) /* largest duration, unless the row sets a limit */

/* Result of parsing a number. */
enum parsed { PARSED, NO_NUMBER, TOO_LARGE };

static enum parsed parse_u64(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0]))
        return NO_NUMBER;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = 0;
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (shift) {
        end++;
        if (strcmp(end, "iB") == 0)
            end += 2;
    }
    if (*end)
        return NO_NUMBER;
    if (errno || n > UINT64_MAX >> shift)
        return TOO_LARGE;
    *out = (uint64_t)n << shift;
    return PARSED;
}

static enum parsed parse_ms(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0]))
        return NO_NUMBER;
    double n = strtod(text, &end);
    double scale = strcmp(end, "ms") == 0                  ? 1
                   : *end == '\0' || strcmp(end, "s") == 0 ? 1e3
                   : strcmp(end, "m") == 0                 ? 60e3
                   : strcmp(end, "h") == 0                 ? 3600e3
                                                           : 0;
    if (scale <= 0)
        return NO_NUMBER;
    if (!isfinite(n) || n * scale > (double)MAX_MS)
        return TOO_LARGE;
    *out = (uint64_t)(n * scale + 0.5);
    return PARSED;
}

static int parse_bool(const char *text, bool *out)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcmp(text, "yes") == 0 ||
        strcmp(text, "on") == 0)
        *out = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "0") == 0 || strcmp(text, "no") == 0 ||
             strcmp(text, "off") == 0)
        *out = false;
    else
        return -1;
    return 0;
}

static int check_range(const struct option_spec *spec, bool fits, uint64_t value, const char *text,
                       struct error *err)
{
    if (fits && value >= spec->min_u64 && (!spec->max_u64 || value <= spec->max_u64))
        return 0;
    uint64_t most = spec->max_u64 ? spec->max_u64 : spec->type == OPTION_MS ? MAX_MS : UINT64_MAX;
    const char *unit = spec->type == OPTION_MS ? " ms" : "";
    if (spec->max_u64 || !fits)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%s: %.80s is not between %" PRIu64 " and %" PRIu64 "%s", spec->name,
                         text, spec->min_u64, most, unit);
    return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: %s is less than %" PRIu64 "%s",
                     spec->name, text, spec->min_u64, unit);
}

static bool is_bytes(const struct option_spec *spec)
{
    return spec->value_name && strcmp(spec->value_name, "BYTES") == 0;
}

/* Names the accepted form in an error. Other servers take a fraction of the device's memory here,
 * so the text says that a fraction is not accepted. */
static const char *describe_bytes(const struct option_spec *spec, char out[128])
{
    int n = snprintf(out, 128, "a number of bytes such as 512M or 20G");
    if (spec->max_u64 && spec->max_u64 != UINT64_MAX)
        snprintf(out + n, 128 - (size_t)n, ", at most %" PRIu64 "G; no fraction",
                 spec->max_u64 >> 30);
    return out;
}

/* Returns true if `text` is an alternative of "a|b|c". */
static bool is_word(const struct option_spec *spec, const char *text)
{
    const char *words = spec->value_name;
    size_t n_text = strlen(text);
    for (size_t n; (n = strcspn(words, "|")) > 0; words += n + (words[n] == '|'))
        if (n == n_text && strncmp(words, text, n) == 0)
            return true;
    return false;
}

/* Writes the alternatives as "a, b or c". */
static const char *describe_words(const struct option_spec *spec, char out[128])
{
    int n_out = 0;
    const char *words = spec->value_name;
    for (size_t n; (n = strcspn(words, "|")) > 0 && n_out < 128; words += n + (words[n] == '|')) {
        const char *before = n_out == 0 ? "" : words[n] == '|' ? ", " : " or ";
        n_out += snprintf(out + n_out, 128 - (size_t)n_out, "%s%.*s", before, (int)n, words);
    }
    return out;
}

int option_value_set(const struct option_spec *spec, const char *text, struct arena *arena,
                     void *settings, struct error *err)
{
    char *field = (char *)settings + spec->offset;
    uint64_t n = 0;
    double f = 0;
    bool b = false;
    const char *want = NULL;
    enum parsed parsed;
    char limit[128];
    switch (spec->type) {
    case OPTION_STRING:
    case OPTION_WORD: {
        if (spec->type == OPTION_WORD && !is_word(spec, text)) {
            want = describe_words(spec, limit);
            break;
        }
        char *copy = arena_strndup(arena, text, strlen(text));
        if (!copy)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "--%s: out of memory", spec->name);
        memcpy(field, &copy, sizeof(copy));
        break;
    }
    case OPTION_BOOL:
        if (parse_bool(text, &b) != 0)
            want = "true or false";
        else
            memcpy(field, &b, sizeof(b));
        break;
    case OPTION_U64:
    case OPTION_MS:
        parsed = spec->type == OPTION_MS ? parse_ms(text, &n) : parse_u64(text, &n);
        if (parsed == NO_NUMBER)
            want = spec->type == OPTION_MS ? "a time such as 500ms, 10s or 2m"
                   : is_bytes(spec)        ? describe_bytes(spec, limit)
                                           : "a whole number";
        else if (check_range(spec, parsed == PARSED, n, text, err) != 0)
            return err->status;
        else
            memcpy(field, &n, sizeof(n));
        break;
    case OPTION_F64: {
        char *end;
        f = strtod(text, &end);
        if (end == text || *end || !isfinite(f))
            want = "a finite number";
        else
            memcpy(field, &f, sizeof(f));
        break;
    }
    }
    if (want)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: \"%.80s%s\" is not %s", spec->name,
                         text, strlen(text) > 80 ? "..." : "", want);
    return 0;
}
