/* manual.h: the description of a program or command, from which --help and the man page are
 * rendered. Texts are plain; `backquotes` mark text to type literally. An empty line separates
 * paragraphs; a line that begins with two spaces is not folded. Any thread. */
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
    const char *program;     /* as typed: "sluice run" */
    const char *page;        /* name of the man page: "sluice-run" */
    int section;             /* 1: commands, 8: daemons */
    const char *synopsis;    /* after the program: "MODEL PROMPT [options]" */
    const char *summary;     /* a single line, no full stop */
    const char *description; /* or NULL */
    const char *items_title; /* title of `items`: "commands" */
    const struct manual_item *items;
    size_t n_items;
    const struct option_spec *specs; /* NULL: the program takes no options */
    size_t n_specs;
    const struct manual_exit *exits;
    size_t n_exits;
    const struct manual_example *examples;
    size_t n_examples;
    const char *see_also; /* "sluice(1), sluice-load(1)", or NULL */
};

/* Renders --help for a terminal of 80 columns. */
void manual_help(const struct manual *manual, struct strbuf *out);
/* Renders the man page as roff for man(7); `date` is YYYY-MM-DD. */
void manual_roff(const struct manual *manual, const char *date, struct strbuf *out);
