#include "base/system/device_name.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/strbuf.h"

/* Skips a device word at *at and returns its kind. Without a word the kind is `before`. */
static const char *take_kind(const char **at, const char *before)
{
    static const struct {
        const char *word, *kind;
    } words[] = {{"cuda", "cuda"}, {"gpu", "cuda"}, {"nvidia", "cuda"}, {"cpu", "cpu"}};
    const char *kind = before;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i].word);
        if (strncasecmp(*at, words[i].word, n) != 0)
            continue;
        kind = words[i].kind;
        *at += n;
        if (**at == ':' || **at == '=')
            ++*at;
        break;
    }
    return kind;
}

/* Returns the length of "3" or "0-3" before a comma or the end; 0 for any other text. */
static size_t numbers(const char *text)
{
    size_t n = strspn(text, "0123456789");
    if (n && text[n] == '-' && isdigit((unsigned char)text[n + 1]))
        n += 1 + strspn(text + n + 1, "0123456789");
    return text[n] == ',' || text[n] == '\0' ? n : 0;
}

bool device_name_meant(const char *text, char *out, size_t n_bytes)
{
    struct strbuf list;
    const char *at = text, *kind = take_kind(&at, "cuda");
    strbuf_init(&list, n_bytes > 1 ? n_bytes - 1 : 1); /* a limit of 0 would mean no limit */
    bool good = n_bytes > 1 && strbuf_printf(&list, "%s:", kind);
    for (size_t n = 0; good; at += n + 1) {
        n = numbers(at);
        good = n && strbuf_add(&list, at, n);
        if (!good || !at[n])
            break;
        strbuf_add_char(&list, ',');
        const char *next = at + n + 1, *word = next;
        good = strcmp(take_kind(&word, kind), kind) == 0;
        n += (size_t)(word - next);
    }
    good = good && !strbuf_failed(&list);
    if (good)
        memcpy(out, strbuf_str(&list), list.n_bytes + 1);
    strbuf_fini(&list);
    return good;
}

bool device_name_is_gpu(const char *list)
{
    return list && strncmp(list, "cuda", 4) == 0;
}
