#include "base/system/shell_word.h"

#include <string.h>

#include "base/strbuf.h"

void shell_word_add(struct strbuf *out, const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
    if (word[0] && word[strspn(word, plain)] == '\0') {
        strbuf_add_str(out, word);
        return;
    }
    strbuf_add_char(out, '\'');
    for (const char *p = word; *p; p++)
        if (*p == '\'')
            strbuf_add_str(out, "'\\''");
        else
            strbuf_add_char(out, *p);
    strbuf_add_char(out, '\'');
}
