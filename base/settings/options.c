#include "base/settings/options.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/settings/config_file.h"
#include "base/settings/near_name.h"
#include "base/settings/option_value.h"
#include "base/settings/setting_names.h"

enum origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_FLAG };

/* The last value of a row as text, and its origin. */
struct given {
    enum origin origin;
    const char *text;  /* NULL: no value was given */
    const char *place; /* for a file: "FILE:LINE" */
    bool shared;       /* the file gives the value before any section */
    const char *own; /* value in the program's own section of the file, even if the environment or a
                        flag overrides it */
};

struct options {
    const struct option_spec *specs;
    size_t n_specs;
    struct given *given; /* [n_specs] */
    const char **positionals;
    size_t n_positionals;
    const char *config; /* or NULL */
    struct arena arena;
};

struct parse {
    struct options *options;
    const char *section;
    void *settings;
    const char *place; /* "FILE:LINE" of the key being read, or NULL */
    bool shared;       /* the key stands before any section */
    bool some;         /* the table has only a part of the section's rows */
    struct error *err;
};

static int remember_given(struct parse *p, size_t i, const char *text, enum origin origin)
{
    struct arena *arena = &p->options->arena;
    struct given given = {.origin = origin, .text = arena_strndup(arena, text, strlen(text))};
    given.own = p->options->given[i].own;
    if (origin == ORIGIN_FILE)
        given.place = arena_strndup(arena, p->place, strlen(p->place));
    given.shared = p->shared;
    if (origin == ORIGIN_FILE)
        given.own = p->shared ? NULL : given.text;
    if (!given.text || (origin == ORIGIN_FILE && !given.place))
        return error_set(p->err, STATUS_RESOURCE_EXHAUSTED, "--%s: out of memory",
                         p->options->specs[i].name);
    p->options->given[i] = given;
    return 0;
}

static int set_value(struct parse *p, size_t i, const char *text, enum origin origin)
{
    int rc = option_value_set(&p->options->specs[i], text, &p->options->arena, p->settings, p->err);
    return rc ? rc : remember_given(p, i, text, origin);
}

static void env_name(const char *name, char *out, size_t n_bytes)
{
    snprintf(out, n_bytes, "SLUICE_%s", name);
    for (char *c = out; *c; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

static int apply_defaults(struct parse *p)
{
    for (size_t i = 0; i < p->options->n_specs; i++) {
        if (!p->options->specs[i].default_text)
            continue;
        int rc = set_value(p, i, p->options->specs[i].default_text, ORIGIN_DEFAULT);
        if (rc)
            return rc;
    }
    return 0;
}

static int apply_environment(struct parse *p)
{
    for (size_t i = 0; i < p->options->n_specs; i++) {
        char name[96];
        if (option_is_command(&p->options->specs[i]))
            continue;
        env_name(p->options->specs[i].name, name, sizeof(name));
        const char *value = getenv(name);
        if (!value)
            continue;
        int rc = set_value(p, i, value, ORIGIN_ENVIRONMENT);
        if (rc)
            return error_prefix(p->err, "%s", name);
    }
    return 0;
}

/* Accepts the sections of all programs, because the programs share a file. */
static int check_section(const char *section, struct error *err)
{
    static const char *const known[] = {"server", "manager", "worker", "cli"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(section, known[i]) == 0)
            return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "[%s]: no such section; there are [server], [manager], [worker], [cli]",
                     section);
}

/* Returns the earlier line of the same file and the same section that set row i; NULL if there is
 * none. */
static const char *line_before(const struct parse *p, size_t i)
{
    const struct given *given = &p->options->given[i];
    if (given->origin != ORIGIN_FILE || given->shared != p->shared)
        return NULL;
    const char *line = strrchr(given->place, ':'), *now = strrchr(p->place, ':');
    bool same = line - given->place == now - p->place &&
                memcmp(given->place, p->place, (size_t)(now - p->place)) == 0;
    return same ? line + 1 : NULL;
}

/* Sets row i from the file. A program's own section overrides keys before any section. A key that
 * is given twice in the same section is an error. */
static int set_from_file(struct parse *p, size_t i, const char *value)
{
    const char *line = line_before(p, i);
    if (!line)
        return set_value(p, i, value, ORIGIN_FILE);
    return error_set(p->err, STATUS_INVALID_ARGUMENT,
                     "%s%s%s%s is given on line %s too (%.80s): remove either line",
                     p->shared ? "" : "[", p->shared ? "" : p->section, p->shared ? "" : "] ",
                     p->options->specs[i].name, line, p->options->given[i].text);
}

/* Refuses a key that no program has. `section` ("": before any) limits the suggestion to that
 * program's settings. */
static int refuse_unknown(const char *section, const char *key, struct error *err)
{
    const char *meant = setting_nearest(key, section[0] ? section : NULL);
    char name[96] = "";
    for (size_t i = 0; meant && meant[i] && i + 1 < sizeof(name); i++)
        name[i] = meant[i] == '-' ? '_' : meant[i]; /* the file's spelling */
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s%s%s%.80s: no such setting%s%s%s",
                     section[0] ? "[" : "", section, section[0] ? "] " : "", key,
                     name[0]      ? "; is "
                     : section[0] ? ""
                                  : " of any program",
                     name, name[0] ? " meant?" : "");
}

static int take_key(void *user, const char *section, const char *key, const char *value,
                    const char *place, struct error *err)
{
    struct parse *p = user;
    if (section[0] && strcmp(section, p->section) != 0)
        return check_section(section, err);
    p->place = place;
    p->shared = !section[0];
    bool command = false;
    for (size_t i = 0; i < p->options->n_specs; i++) {
        const struct option_spec *spec = &p->options->specs[i];
        if (!setting_same_name(key, spec->name))
            continue;
        if (!option_is_command(spec))
            return set_from_file(p, i, value);
        command = true;
    }
    /* All programs share the keys before any section, and all commands share [cli]. */
    bool shared = !section[0] || strcmp(section, "cli") == 0;
    if (p->some || (shared && setting_is_known(key, section[0] ? section : NULL)))
        return 0;
    if (command)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s%s%s%.80s: a command-line flag, not a setting: remove the line",
                         section[0] ? "[" : "", section, section[0] ? "] " : "", key);
    return refuse_unknown(section, key, err);
}

static const char *config_path(int argc, char *const argv[])
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            return argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
            assert(argv[i + 1]); /* argc counts this argument */
            return argv[i + 1];
        }
    }
    return getenv("SLUICE_CONFIG");
}

static int find_flag(const struct options *o, const char *word, size_t n_bytes)
{
    for (size_t i = 0; i < o->n_specs; i++)
        if (strncmp(o->specs[i].name, word, n_bytes) == 0 && o->specs[i].name[n_bytes] == '\0')
            return (int)i;
    return -1;
}

static int find_letter(const struct options *o, char letter)
{
    for (size_t i = 0; i < o->n_specs; i++)
        if (o->specs[i].letter == letter)
            return (int)i;
    return -1;
}

/* Refuses an unknown flag; `n` bytes of it are its name, without dashes and value. */
static int refuse_flag(struct parse *p, const char *word, size_t n)
{
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)n, word + 2);
    struct near_name near = near_name_of(n < sizeof(name) && word[1] == '-' ? name : "");
    for (size_t i = 0; i < p->options->n_specs; i++)
        near_name_try(&near, p->options->specs[i].name);
    near_name_try(&near, "config");
    return error_set(p->err, STATUS_INVALID_ARGUMENT, "%s: no such option%s%s%s (see --help)", word,
                     near.name ? "; is --" : "", near.name ? near.name : "",
                     near.name ? " meant?" : "");
}

/* Applies an argument that starts with '-'. Advances *i past a separate value. */
static int apply_flag(struct parse *p, int argc, char *const argv[], int *i)
{
    const char *word = argv[*i];
    const char *equals = NULL;
    size_t n = 0;
    int index;
    if (word[1] == '-') {
        equals = strchr(word, '=');
        n = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
        if (n == 6 && strncmp(word + 2, "config", 6) == 0) {
            *i += equals ? 0 : 1;
            if (!equals && *i >= argc)
                return error_set(p->err, STATUS_INVALID_ARGUMENT, "--config: needs a value: FILE");
            return 0; /* config_path() has read it */
        }
        index = find_flag(p->options, word + 2, n);
    } else {
        index = word[2] ? -1 : find_letter(p->options, word[1]);
    }
    if (index < 0)
        return refuse_flag(p, word, n);
    const struct option_spec *spec = &p->options->specs[index];
    if (equals)
        return set_value(p, (size_t)index, equals + 1, ORIGIN_FLAG);
    if (spec->type == OPTION_BOOL)
        return set_value(p, (size_t)index, "true", ORIGIN_FLAG);
    if (*i + 1 >= argc)
        return error_set(p->err, STATUS_INVALID_ARGUMENT, "--%s: needs a value: %s", spec->name,
                         spec->value_name ? spec->value_name : "any");
    (*i)++;
    return set_value(p, (size_t)index, argv[*i], ORIGIN_FLAG);
}

static int apply_flags(struct parse *p, int argc, char *const argv[])
{
    bool flags = true;
    for (int i = 1; i < argc; i++) {
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
        } else if (flags && argv[i][0] == '-' && argv[i][1]) {
            int rc = apply_flag(p, argc, argv, &i);
            if (rc)
                return rc;
        } else {
            p->options->positionals[p->options->n_positionals++] = argv[i];
        }
    }
    return 0;
}

static int parse_words(struct parse *p, const struct option_spec *specs, size_t n_specs, int argc,
                       char *const argv[], struct options **out_options)
{
    struct options *o = calloc(1, sizeof(*o));
    if (!o)
        return error_set(p->err, STATUS_RESOURCE_EXHAUSTED, "options: out of memory");
    arena_init(&o->arena, 0, 0);
    o->specs = specs;
    o->n_specs = n_specs;
    o->given = calloc(n_specs + 1, sizeof(*o->given));
    o->positionals = calloc((size_t)argc + 1, sizeof(*o->positionals));
    p->options = o;
    int rc = o->given && o->positionals
                 ? 0
                 : error_set(p->err, STATUS_RESOURCE_EXHAUSTED, "options: out of memory");
    o->config = config_path(argc, argv);
    if (!rc)
        rc = apply_defaults(p);
    if (!rc && o->config)
        rc = config_file_read(o->config, take_key, p, p->err);
    if (!rc)
        rc = apply_environment(p);
    if (!rc)
        rc = apply_flags(p, argc, argv);
    if (rc) {
        options_destroy(o);
        return rc;
    }
    *out_options = o;
    return 0;
}

int options_parse(const char *section, const struct option_spec *specs, size_t n_specs, int argc,
                  char *const argv[], void *settings, struct options **out_options,
                  struct error *err)
{
    struct parse p = {.section = section, .settings = settings, .err = err};
    return parse_words(&p, specs, n_specs, argc, argv, out_options);
}

int options_parse_some(const char *section, const struct option_spec *specs, size_t n_specs,
                       int argc, char *const argv[], void *settings, struct options **out_options,
                       struct error *err)
{
    struct parse p = {.section = section, .settings = settings, .some = true, .err = err};
    return parse_words(&p, specs, n_specs, argc, argv, out_options);
}

int options_defaults(const struct option_spec *specs, size_t n_specs, void *settings,
                     struct error *err)
{
    struct options o = {.specs = specs, .n_specs = n_specs};
    struct parse p = {.options = &o, .settings = settings, .err = err};
    arena_init(&o.arena, 0, 0);
    o.given = calloc(n_specs + 1, sizeof(*o.given));
    int rc = o.given ? apply_defaults(&p)
                     : error_set(err, STATUS_RESOURCE_EXHAUSTED, "options: out of memory");
    for (size_t i = 0; !rc && i < n_specs; i++)
        if ((specs[i].type == OPTION_STRING || specs[i].type == OPTION_WORD) &&
            specs[i].default_text)
            memcpy((char *)settings + specs[i].offset, &specs[i].default_text,
                   sizeof(specs[i].default_text));
    arena_fini(&o.arena);
    free(o.given);
    return rc;
}

void options_destroy(struct options *options)
{
    if (!options)
        return;
    arena_fini(&options->arena);
    free(options->given);
    free(options->positionals);
    free(options);
}

const char *options_config(const struct options *options)
{
    return options->config ? options->config : "";
}

size_t options_n_positionals(const struct options *options)
{
    return options->n_positionals;
}

const char *options_positional(const struct options *options, size_t i)
{
    return i < options->n_positionals ? options->positionals[i] : NULL;
}

const char *options_origin(const struct options *options, size_t i_spec)
{
    static const char *const names[] = {"default", "file", "environment", "flag"};
    return names[options->given[i_spec].origin];
}

bool options_is_own(const struct options *options, size_t i_spec)
{
    const struct given *given = &options->given[i_spec];
    return given->origin == ORIGIN_FLAG || (given->origin == ORIGIN_FILE && !given->shared);
}

const char *options_text(const struct options *options, size_t i_spec)
{
    const char *text = options->given[i_spec].text;
    return text ? text : "";
}

const char *options_own_text(const struct options *options, size_t i_spec)
{
    return options->given[i_spec].own;
}

static void add_origin(const struct option_spec *spec, const struct given *given,
                       struct strbuf *out)
{
    char name[96];
    env_name(spec->name, name, sizeof(name));
    strbuf_add_str(out, "  # ");
    switch (given->origin) {
    case ORIGIN_FLAG:
        strbuf_printf(out, "flag --%s", spec->name);
        break;
    case ORIGIN_ENVIRONMENT:
        strbuf_printf(out, "environment %s", name);
        break;
    case ORIGIN_FILE:
        strbuf_add_str(out, given->place);
        break;
    case ORIGIN_DEFAULT:
        strbuf_add_str(out, "default");
        break;
    }
}

void options_show(const struct options *options, bool with_origin, struct strbuf *out)
{
    for (size_t i = 0; i < options->n_specs; i++) {
        const struct option_spec *spec = &options->specs[i];
        const struct given *given = &options->given[i];
        if (option_is_command(spec))
            continue;
        for (const char *c = spec->name; *c; c++)
            strbuf_add_char(out, *c == '-' ? '_' : *c);
        strbuf_printf(out, " = %s", given->text ? given->text : "");
        if (with_origin)
            add_origin(spec, given, out);
        strbuf_add_char(out, '\n');
    }
}

int options_set(struct options *options, void *settings, const char *name, const char *text,
                struct error *err)
{
    struct parse p = {.options = options, .settings = settings, .err = err};
    int i = find_flag(options, name, strlen(name));
    if (i < 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: no such option", name);
    return set_value(&p, (size_t)i, text, ORIGIN_FLAG);
}
