#include "server/gateway/http/http_ignored.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"

enum { MAX_NAMES_BYTES = 400 };

static const char more[] = "..."; /* stands for the names that found no room */

/* True if the list has the name. */
static bool has_name(const struct strbuf *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = strbuf_str(names); *at;) {
        size_t length = strcspn(at, ",");
        if (length == n && strncmp(at, name, n) == 0)
            return true;
        at += length;
        at += strspn(at, ", ");
    }
    return false;
}

/* Writes the name as printable ASCII: a header may have nothing else. */
static void clean(const char *name, char *out)
{
    for (; *name; name++)
        *out++ = (char)(*name > ' ' && *name < 0x7f && *name != ',' ? *name : '?');
    *out = '\0';
}

void http_ignored_add(struct strbuf *names, const char *name)
{
    static const char comma[] = ", ";
    char text[MAX_NAMES_BYTES + 1];
    size_t n = strlen(name), n_reserved = strlen(comma) + strlen(more);
    bool fits = names->n_bytes + strlen(comma) + n + n_reserved <= MAX_NAMES_BYTES;
    clean(fits ? name : more, text);
    if (has_name(names, more) || has_name(names, text))
        return;
    if (names->n_bytes)
        strbuf_add_str(names, comma);
    strbuf_add_str(names, text);
}

void http_ignored_header(const struct strbuf *names, char *out_line, size_t n_line)
{
    out_line[0] = '\0';
    if (names->n_bytes)
        snprintf(out_line, n_line, "X-Sluice-Ignored: %s\r\n", strbuf_str(names));
}
