#include "clients/cli/term/text_input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

int text_input_check(const char *what, const char *text, size_t n_bytes, struct error *err)
{
    size_t bad;
    const char *nul = n_bytes ? memchr(text, '\0', n_bytes) : NULL;
    if (nul)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s has a NUL at byte %zu", what,
                         (size_t)(nul - text));
    if (!utf8_valid(text, n_bytes, &bad))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s is not UTF-8 at byte %zu", what, bad);
    return 0;
}

int text_input_stdin(const char *what, struct strbuf *out, struct error *err)
{
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), stdin)) > 0)
        if (!strbuf_add(out, part, n))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s on stdin is too long: at most %d bytes", what,
                             TEXT_INPUT_MAX_BYTES);
    if (ferror(stdin))
        return error_errno(err, errno, "cannot read %s from stdin", what);
    if (out->n_bytes && out->data[out->n_bytes - 1] == '\n')
        out->data[--out->n_bytes] = '\0';
    if (!out->n_bytes)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s on stdin is empty", what);
    return text_input_check(what, out->data, out->n_bytes, err);
}
