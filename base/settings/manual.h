/* manual.h: what a program or a command says of itself, told once: --help and the man page are two
 * renderings of one record. Texts are plain; `backquotes` mark what is typed as it stands, an empty
 * line parts paragraphs, and a line that begins with two blanks stays a line of its own. Any
 * thread. */
#pragma once

#include <stddef.h>

#include "base/settings/options.h"

struct manual_item {
    const char *term, *meaning;
};

struct manual_example {
    const char *command;
    const char *what; /* or NULL */
};

struct manual_exit {
    int code;
    const char *meaning;
};

struct manual {
    const char *program;     /* "sluice run": what is typed */
    const char *page;        /* "sluice-run": the page's name */
    int section;             /* 1: commands, 8: daemons */
    const char *synopsis;    /* after the program: "MODEL PROMPT [options]" */
    const char *summary;     /* one line, no full stop */
    const char *description; /* or NULL */
    const char *items_title; /* of `items`: "commands" */
    const struct manual_item *items;
    size_t n_items;
    const struct option_spec *specs; /* none: the program takes no options */
    size_t n_specs;
    const struct manual_exit *exits;
    size_t n_exits;
    const struct manual_example *examples;
    size_t n_examples;
    const char *see_also; /* "sluice(1), sluice-load(1)", or NULL */
};

/* For a terminal of 80 columns. */
void manual_help(const struct manual *manual, struct strbuf *out);
/* roff for man(7); `date` as YYYY-MM-DD. */
void manual_roff(const struct manual *manual, const char *date, struct strbuf *out);
