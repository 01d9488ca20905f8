#include "base/text/find.h"

#include <string.h>

const char *find_literal(const char *text, size_t n_bytes, const char *what, size_t n_what)
{
    if (!n_what)
        return text;
    while (n_bytes >= n_what) {
        const char *at = memchr(text, what[0], n_bytes - n_what + 1);
        if (!at || memcmp(at, what, n_what) == 0)
            return at;
        n_bytes -= (size_t)(at + 1 - text);
        text = at + 1;
    }
    return NULL;
}
