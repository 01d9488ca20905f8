#include "base/settings/manual.h"

#include <ctype.h>
#include <string.h>

enum { COLUMNS = 76, TERM_COLUMNS = 10 };

/* --- --help --- */

/* Appends the words of a single line of text, folded at COLUMNS. */
static void fold(const char *text, size_t n, struct strbuf *out)
{
    size_t column = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && text[end] != ' ')
            end++;
        if (column && column + 1 + (end - i) > COLUMNS) {
            strbuf_add_char(out, '\n');
            column = 0;
        } else if (column) {
            strbuf_add_char(out, ' ');
            column++;
        }
        strbuf_add(out, text + i, end - i);
        column += end - i;
        for (i = end; i < n && text[i] == ' ';)
            i++;
    }
    strbuf_add_char(out, '\n');
}

static void help_text(const char *text, struct strbuf *out)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (strncmp(text, "  ", 2) == 0) {
            strbuf_add(out, text, n);
            strbuf_add_char(out, '\n');
        } else {
            fold(text, n, out);
        }
        text += n + (text[n] == '\n');
    }
}

static void help_items(const struct manual *m, struct strbuf *out)
{
    int columns = TERM_COLUMNS;
    for (size_t i = 0; i < m->n_items; i++)
        if ((int)strlen(m->items[i].term) > columns)
            columns = (int)strlen(m->items[i].term);
    if (m->n_items)
        strbuf_printf(out, "\n%s:\n", m->items_title);
    for (size_t i = 0; i < m->n_items; i++)
        strbuf_printf(out, "  %-*s %s\n", columns, m->items[i].term, m->items[i].meaning);
}

void manual_help(const struct manual *m, struct strbuf *out)
{
    strbuf_printf(out, "%s: %s\n\nusage: %s%s%s\n", m->program, m->summary, m->program,
                  m->synopsis[0] ? " " : "", m->synopsis);
    if (m->description) {
        strbuf_add_char(out, '\n');
        help_text(m->description, out);
    }
    help_items(m, out);
    if (m->n_examples)
        strbuf_add_str(out, "\nexamples:\n");
    for (size_t i = 0; i < m->n_examples; i++) {
        strbuf_printf(out, "  %s\n", m->examples[i].command);
        if (m->examples[i].what)
            strbuf_printf(out, "      %s\n", m->examples[i].what);
    }
    if (m->n_specs) {
        strbuf_add_str(out, "\noptions:\n");
        options_help(m->specs, m->n_specs, out);
    }
    if (m->n_exits)
        strbuf_add_str(out, "\nexit status:\n");
    for (size_t i = 0; i < m->n_exits; i++)
        strbuf_printf(out, "  %-3d %s\n", m->exits[i].code, m->exits[i].meaning);
}

/* --- roff --- */

/* Appends a line of text as roff. Backquotes switch bold on and off; *bold carries the state from
 * line to line. A leading control character is escaped. */
static void roff_span(const char *text, size_t n, bool *bold, struct strbuf *out)
{
    if (n && (text[0] == '.' || text[0] == '\''))
        strbuf_add_str(out, "\\&");
    if (*bold)
        strbuf_add_str(out, "\\fB");
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '`') {
            *bold = !*bold;
            strbuf_add_str(out, *bold ? "\\fB" : "\\fR");
        } else if (text[i] == '\\') {
            strbuf_add_str(out, "\\e");
        } else if (text[i] == '-') {
            strbuf_add_str(out, "\\-");
        } else if (text[i] == '\'') {
            strbuf_add_str(out, "\\(aq");
        } else if (text[i] == '~') {
            strbuf_add_str(out, "\\(ti");
        } else {
            strbuf_add_char(out, text[i]);
        }
    }
    if (*bold)
        strbuf_add_str(out, "\\fR");
}

static void roff_text(const char *text, size_t n, struct strbuf *out)
{
    bool bold = false;
    roff_span(text, n, &bold, out);
}

static void roff_str(const char *text, struct strbuf *out)
{
    roff_text(text, strlen(text), out);
}

/* Appends running text, folded into short lines. */
static void roff_folded(const char *text, size_t n, struct strbuf *out)
{
    struct strbuf folded;
    bool bold = false;
    strbuf_init(&folded, 0);
    fold(text, n, &folded);
    for (const char *line = strbuf_str(&folded); *line;) {
        size_t n_line = strcspn(line, "\n");
        roff_span(line, n_line, &bold, out);
        strbuf_add_char(out, '\n');
        line += n_line + (line[n_line] == '\n');
    }
    strbuf_fini(&folded);
}

static void roff_line(const char *text, struct strbuf *out)
{
    roff_str(text, out);
    strbuf_add_char(out, '\n');
}

static void roff_upper(const char *text, struct strbuf *out)
{
    for (; *text; text++)
        if (*text == '-')
            strbuf_add_str(out, "\\-");
        else
            strbuf_add_char(out, (char)toupper((unsigned char)*text));
}

/* Appends a line that roff does not fold. */
static void roff_literal(const char *text, size_t n, struct strbuf *out)
{
    strbuf_add_str(out, ".RS 4\n.nf\n");
    roff_text(text, n, out);
    strbuf_add_str(out, "\n.fi\n.RE\n");
}

static void roff_paragraphs(const char *text, struct strbuf *out)
{
    while (*text) {
        size_t n = strcspn(text, "\n"), blank = strspn(text, " ");
        if (n == 0) {
            strbuf_add_str(out, ".PP\n");
        } else if (blank >= 2) {
            roff_literal(text + blank, n - blank, out);
        } else {
            roff_folded(text, n, out);
        }
        text += n + (text[n] == '\n');
    }
}

static void roff_option(const struct option_spec *s, struct strbuf *out)
{
    strbuf_add_str(out, ".TP\n");
    if (s->letter)
        strbuf_printf(out, "\\fB\\-%c\\fR, ", s->letter);
    strbuf_add_str(out, "\\fB\\-\\-");
    roff_str(s->name, out);
    strbuf_add_str(out, "\\fR");
    if (s->type != OPTION_BOOL) {
        strbuf_add_str(out, " \\fI");
        roff_str(s->value_name ? s->value_name : "VALUE", out);
        strbuf_add_str(out, "\\fR");
    }
    strbuf_add_char(out, '\n');
    roff_str(s->help, out);
    if (option_shows_default(s)) {
        strbuf_add_str(out, " [");
        roff_str(s->default_text, out);
        strbuf_add_char(out, ']');
    }
    strbuf_add_char(out, '\n');
}

static void roff_options(const struct manual *m, struct strbuf *out)
{
    if (!m->n_specs)
        return;
    strbuf_add_str(out, ".SH OPTIONS\n");
    for (size_t i = 0; i < m->n_specs; i++)
        roff_option(&m->specs[i], out);
    roff_option(&option_config, out);
    strbuf_add_str(out, ".SH ENVIRONMENT\n");
    roff_paragraphs(options_sources, out);
}

static void roff_examples(const struct manual *m, struct strbuf *out)
{
    if (m->n_examples)
        strbuf_add_str(out, ".SH EXAMPLES\n");
    for (size_t i = 0; i < m->n_examples; i++) {
        if (i)
            strbuf_add_str(out, ".PP\n");
        if (m->examples[i].what) {
            roff_str(m->examples[i].what, out);
            strbuf_add_str(out, ":\n");
        }
        roff_literal(m->examples[i].command, strlen(m->examples[i].command), out);
    }
}

void manual_roff(const struct manual *m, const char *date, struct strbuf *out)
{
    strbuf_add_str(out, ".TH ");
    roff_upper(m->page, out);
    strbuf_printf(out, " %d \"%s\" \"Sluice %s\" \"Sluice manual\"\n.SH NAME\n", m->section, date,
                  SLUICE_VERSION);
    roff_str(m->page, out);
    strbuf_add_str(out, " \\- ");
    roff_line(m->summary, out);
    strbuf_add_str(out, ".SH SYNOPSIS\n.B ");
    roff_line(m->program, out);
    if (m->synopsis[0])
        roff_line(m->synopsis, out);
    strbuf_add_str(out, ".SH DESCRIPTION\n");
    roff_paragraphs(m->description ? m->description : m->summary, out);
    if (m->n_items) {
        strbuf_add_str(out, ".SH ");
        roff_upper(m->items_title, out);
        strbuf_add_char(out, '\n');
    }
    for (size_t i = 0; i < m->n_items; i++) {
        strbuf_add_str(out, ".TP\n.B ");
        roff_line(m->items[i].term, out);
        roff_line(m->items[i].meaning, out);
    }
    roff_options(m, out);
    if (m->n_exits)
        strbuf_add_str(out, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < m->n_exits; i++) {
        strbuf_printf(out, ".TP\n.B %d\n", m->exits[i].code);
        roff_line(m->exits[i].meaning, out);
    }
    roff_examples(m, out);
    if (m->see_also) {
        strbuf_add_str(out, ".SH SEE ALSO\n");
        roff_line(m->see_also, out);
    }
}
