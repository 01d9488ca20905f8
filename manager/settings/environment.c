#include "manager/settings/environment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"

static bool is_inherited(const char *variable)
{
    static const char *const prefixes[] = {"PATH=",
                                           "HOME=",
                                           "LANG=",
                                           "SLUICE_",
                                           "LD_LIBRARY_PATH=",
                                           "ASAN_OPTIONS=",
                                           "UBSAN_OPTIONS=",
                                           "TSAN_OPTIONS=",
                                           "LSAN_OPTIONS=",
                                           "CUDA_", /* visible GPUs, their order, MPS */
                                           "TMPDIR="};
    /* Not for workers: the manager's own config file, test failpoints, and API keys, since
     * workers read untrusted files. */
    static const char *const withheld[] = {"SLUICE_CONFIG=", "SLUICE_FAILPOINT=", "SLUICE_API_KEY"};
    for (size_t i = 0; i < sizeof(withheld) / sizeof(withheld[0]); i++)
        if (strncmp(variable, withheld[i], strlen(withheld[i])) == 0)
            return false;
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* The loader searches for a file name without a slash, so that name stays. */
static bool is_relative(const char *path, bool is_folder)
{
    return path[0] && path[0] != '/' && (is_folder || strchr(path, '/'));
}

static void add_path(struct strbuf *out, const char *path, size_t n_bytes, bool is_folder,
                     const char *folder)
{
    char *copy = strndup(path, n_bytes);
    if (!copy) {
        out->failed = true;
        return;
    }
    if (is_relative(copy, is_folder)) {
        strbuf_add_str(out, folder);
        strbuf_add_char(out, '/');
    }
    strbuf_add_str(out, copy);
    free(copy);
}

/* Adds the variable and its terminator. */
static void add_variable(struct strbuf *out, const char *variable, const char *folder)
{
    static const char module[] = "SLUICE_CUDA_MODULE=", list[] = "SLUICE_CUDA_LIBRARY_PATH=";
    bool is_list = strncmp(variable, list, sizeof(list) - 1) == 0;
    bool has_paths = is_list || strncmp(variable, module, sizeof(module) - 1) == 0;
    if (!has_paths || !folder || !*folder) {
        strbuf_add(out, variable, strlen(variable) + 1);
        return;
    }
    const char *at = strchr(variable, '=') + 1;
    strbuf_add(out, variable, (size_t)(at - variable));
    while (true) {
        size_t n = is_list ? strcspn(at, ":") : strlen(at);
        add_path(out, at, n, is_list, folder);
        at += n;
        if (!*at)
            break;
        strbuf_add_char(out, *at++);
    }
    strbuf_add(out, "", 1);
}

/* Makes one block: the pointers, then the texts that they point to. */
static char **pack_block(const struct strbuf *texts, size_t n)
{
    char **out = malloc((n + 1) * sizeof(*out) + texts->n_bytes);
    if (!out)
        return NULL;
    char *text = (char *)(out + n + 1);
    if (n)
        memcpy(text, texts->data, texts->n_bytes);
    for (size_t i = 0; i < n; i++) {
        out[i] = text;
        text += strlen(text) + 1;
    }
    out[n] = NULL;
    return out;
}

char **environment_create(char *const *environ_of_parent, const char *folder)
{
    struct strbuf texts = {0};
    size_t n = 0;
    for (char *const *v = environ_of_parent; *v; v++) {
        if (!is_inherited(*v))
            continue;
        add_variable(&texts, *v, folder);
        n++;
    }
    char **out = strbuf_failed(&texts) ? NULL : pack_block(&texts, n);
    strbuf_fini(&texts);
    return out;
}
