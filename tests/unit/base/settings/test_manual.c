#include <string.h>

#include "base/settings/manual.h"
#include "tests/unit/base/support_cmocka.h"

static const struct option_spec specs[] = {
    {"max-batch", 'b', OPTION_U64, 0, "8", "N", "sequences at once", 1, 64},
    {"quiet", 0, OPTION_BOOL, 8, "false", NULL, "no words", 0, 0},
};
static const struct manual_item items[] = {{"/exit", "end"}};
static const struct manual_exit exits[] = {{0, "done"}};
static const struct manual_example examples[] = {{"prog 'x' \\n", "a quote and a backslash"},
                                                 {".hidden", NULL}};
static const struct manual manual = {
    .program = "prog sub",
    .page = "prog-sub",
    .section = 1,
    .synopsis = "FILE [options]",
    .summary = "does x",
    .description = "First `--quiet` ~ paragraph.\n\n'second' \\ one.\n  kept  as it is",
    .items_title = "commands",
    .items = items,
    .n_items = 1,
    .specs = specs,
    .n_specs = 2,
    .exits = exits,
    .n_exits = 1,
    .examples = examples,
    .n_examples = 2,
    .see_also = "prog(1)",
};

static void test_help_tells_everything_that_the_record_has(void **state)
{
    (void)state;
    struct strbuf out = {0};
    manual_help(&manual, &out);
    static const char *const wanted[] = {
        "prog sub: does x\n",
        "usage: prog sub FILE [options]\n",
        "  kept  as it is\n",
        "commands:\n  /exit",
        "-b, --max-batch N",
        "[8]",
        "    --quiet ",
        "--config FILE",
        "exit status:\n  0   done",
        "  prog 'x' \\n\n      a quote and a backslash\n",
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strstr(strbuf_str(&out), wanted[i]))
            fail_msg("help lacks \"%s\":\n%s", wanted[i], strbuf_str(&out));
    strbuf_fini(&out);
}

static void test_help_folds_at_the_edge_of_a_terminal(void **state)
{
    (void)state;
    char words[2001];
    for (size_t i = 0; i < 2000; i++)
        words[i] = i % 7 == 6 ? ' ' : 'w';
    words[2000] = '\0';
    struct manual folded = {
        .program = "p", .page = "p", .synopsis = "", .summary = "s", .description = words};
    struct strbuf out = {0};
    manual_help(&folded, &out);
    size_t longest = 0, n_words = 0;
    for (const char *line = strbuf_str(&out); *line;) {
        size_t n = strcspn(line, "\n");
        longest = n > longest ? n : longest;
        for (size_t i = 0; i < n; i++)
            n_words += line[i] == 'w' && (i + 1 == n || line[i + 1] == ' ');
        line += n + (line[n] == '\n');
    }
    assert_true(longest > 60 && longest <= 80);
    assert_int_equal(n_words, 286);
    strbuf_fini(&out);
}

static void test_roff_escapes_what_roff_would_take_for_its_own(void **state)
{
    (void)state;
    struct strbuf out = {0};
    manual_roff(&manual, "2026-01-02", &out);
    static const char *const wanted[] = {
        ".TH PROG\\-SUB 1 \"2026-01-02\"",
        "prog\\-sub \\- does x\n",
        "First \\fB\\-\\-quiet\\fR \\(ti paragraph.\n.PP\n",
        "\\&\\(aqsecond\\(aq \\e one.\n",
        ".nf\nkept  as it is\n.fi\n",
        "\\fB\\-b\\fR, \\fB\\-\\-max\\-batch\\fR \\fIN\\fR\nsequences at once [8]\n",
        ".SH COMMANDS\n.TP\n.B /exit\nend\n",
        ".TP\n.B 0\ndone\n",
        "prog \\(aqx\\(aq \\en\n",
        "\n\\&.hidden\n",
        ".SH SEE ALSO\nprog(1)\n",
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strstr(strbuf_str(&out), wanted[i]))
            fail_msg("page lacks \"%s\":\n%s", wanted[i], strbuf_str(&out));
    for (const char *line = strbuf_str(&out); line; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        assert_true(line[0] != '\'');
    }
    strbuf_fini(&out);
}

/* A `span` that continues on the next line is bold on both lines. The text after it is not bold. */
static void test_a_span_across_a_line_end_stays_what_it_is(void **state)
{
    (void)state;
    struct manual spans = {
        .program = "p",
        .page = "p",
        .synopsis = "",
        .summary = "s",
        .description = "Before `a span of words that is far too long to have a place on one line "
                       "of eighty columns and so goes on in the next` and plain words after `it`."};
    struct strbuf out = {0};
    manual_roff(&spans, "2026-01-02", &out);
    const char *cut = strstr(strbuf_str(&out), "Before \\fBa span");
    assert_non_null(cut);
    const char *end = strchr(cut, '\n');
    assert_true(strncmp(end - 3, "\\fR", 3) == 0 && strncmp(end + 1, "\\fB", 3) == 0);
    assert_non_null(strstr(end, "the next\\fR and plain words after"));
    assert_non_null(strstr(end, "\\fBit\\fR."));
    strbuf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help_tells_everything_that_the_record_has),
        cmocka_unit_test(test_help_folds_at_the_edge_of_a_terminal),
        cmocka_unit_test(test_roff_escapes_what_roff_would_take_for_its_own),
        cmocka_unit_test(test_a_span_across_a_line_end_stays_what_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
