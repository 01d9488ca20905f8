/* names.h: what a test may demand of a text for people: that the text names some values. The other
 * words of the text may change. */
#pragma once

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* Returns true if `text` has the value as a whole word: no letter, digit or '_' touches the value.
 */
static inline bool names_value(const char *text, const char *value, size_t n_value)
{
    bool first = isalnum((unsigned char)value[0]) || value[0] == '_';
    bool last = isalnum((unsigned char)value[n_value - 1]) || value[n_value - 1] == '_';
    for (const char *at = strchr(text, value[0]); at; at = strchr(at + 1, value[0])) {
        unsigned char before = at == text ? ' ' : (unsigned char)at[-1];
        if (strncmp(at, value, n_value) != 0)
            continue;
        unsigned char after = (unsigned char)at[n_value];
        if (!(first && (isalnum(before) || before == '_')) &&
            !(last && (isalnum(after) || after == '_')))
            return true;
    }
    return false;
}

/* Returns true if `text` names each value of a list, "--cpus|byte 2|63"; "" needs no value. */
static inline bool names_all(const char *text, const char *values)
{
    for (size_t n; *values; values += n + (values[n] == '|')) {
        n = strcspn(values, "|");
        if (n && !names_value(text, values, n))
            return false;
    }
    return true;
}
