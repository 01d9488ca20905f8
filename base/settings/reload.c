#include "base/settings/reload.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct reload {
    struct reload_config config;
    void *running; /* settings that the program runs with, laid out by `specs` */
    /* The last two parses: they own the strings of `running` and of the program's settings. */
    struct options *options, *previous;
};

struct reload *reload_create(const struct reload_config *config)
{
    struct reload *reload = calloc(1, sizeof(*reload));
    void *running = malloc(config->settings_bytes);
    if (!reload || !running) {
        free(reload);
        free(running);
        return NULL;
    }
    memcpy(running, config->settings, config->settings_bytes);
    reload->config = *config;
    reload->running = running;
    return reload;
}

void reload_destroy(struct reload *reload)
{
    if (!reload)
        return;
    options_destroy(reload->options);
    options_destroy(reload->previous);
    free(reload->running);
    free(reload);
}

static size_t size_of(enum option_type type)
{
    switch (type) {
    case OPTION_STRING:
    case OPTION_WORD:
        return sizeof(const char *);
    case OPTION_BOOL:
        return sizeof(bool);
    case OPTION_U64:
    case OPTION_MS:
        return sizeof(uint64_t);
    case OPTION_F64:
        return sizeof(double);
    }
    return 0;
}

static bool equal(const struct option_spec *spec, const void *a, const void *b)
{
    const char *text_a, *text_b;
    const char *at_a = (const char *)a + spec->offset, *at_b = (const char *)b + spec->offset;
    if (spec->type != OPTION_STRING && spec->type != OPTION_WORD)
        return memcmp(at_a, at_b, size_of(spec->type)) == 0;
    memcpy(&text_a, at_a, sizeof(text_a));
    memcpy(&text_b, at_b, sizeof(text_b));
    return strcmp(text_a ? text_a : "", text_b ? text_b : "") == 0;
}

static bool is_live(const struct reload *reload, const char *name)
{
    for (const char *const *live = reload->config.live; *live; live++)
        if (strcmp(*live, name) == 0)
            return true;
    return false;
}

static void add_name(struct strbuf *out, const char *name)
{
    strbuf_printf(out, "%s%s", out->n_bytes ? " " : "", name);
}

int reload_read(struct reload *reload, void *settings, struct strbuf *out_set,
                struct strbuf *out_restart, struct error *err)
{
    const struct reload_config *c = &reload->config;
    void *fresh = calloc(1, c->settings_bytes);
    if (!fresh)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "settings: out of memory");
    struct options *options = NULL;
    int rc =
        options_parse(c->section, c->specs, c->n_specs, c->argc, c->argv, fresh, &options, err);
    if (rc == 0 && c->check)
        rc = c->check(fresh, err);
    if (rc != 0) {
        options_destroy(options);
        free(fresh);
        return rc;
    }
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct option_spec *spec = &c->specs[i];
        size_t at = spec->offset, n = size_of(spec->type);
        bool live = is_live(reload, spec->name);
        if (!equal(spec, reload->running, fresh))
            add_name(live ? out_set : out_restart, spec->name);
        if (live) { /* also if equal: the older string will be freed with its options */
            memcpy((char *)reload->running + at, (char *)fresh + at, n);
            memcpy((char *)settings + at, (char *)fresh + at, n);
        }
    }
    options_destroy(reload->previous);
    reload->previous = reload->options;
    reload->options = options;
    free(fresh);
    return 0;
}
