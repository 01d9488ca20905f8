/* Reasoning and content of a text: the same for every way to cut the text into tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/request/reasoning.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_gguf.h"

#define SPACES_16 "                "

/* A text with its markers, and the two kinds of text in it. */
struct row {
    const char *raw, *reasoning, *content;
};

static const struct row think_rows[] = {
    {"<think>a b</think>c", "a b", "c"},
    {"\n <think>x</think>\n\ny", "x", "\n\ny"},
    {"<think></think>c", "", "c"},
    {"<think>a</think>", "a", ""},
    {"<think>never ends", "never ends", ""},
    {"plain < text", "", "plain < text"},
    {"\n\n", "", "\n\n"},
    {"", "", ""},
    {"a<think>b", "", "a<think>b"},
    {"<think>a</think>b</think>c<think>d", "a", "b</think>c<think>d"},
    {"<think>a<<</think>b", "a<<", "b"},
    {"<think>\xF0\x9F\x8E\x89\xC3\xA9</think>\xF0\x9F\x8E\x89", "\xF0\x9F\x8E\x89\xC3\xA9",
     "\xF0\x9F\x8E\x89"},
    {SPACES_16 SPACES_16 SPACES_16 SPACES_16 " <think>a", "",
     SPACES_16 SPACES_16 SPACES_16 SPACES_16 " <think>a"},
};

/* Rows for markers of plain text: here a part of a marker is text. */
static const struct row text_rows[] = {
    {"<thin", "", "<thin"},
    {"<thinking>no", "", "<thinking>no"},
    {"<think>a</thi", "a</thi", ""},
    {"<think>a</</think>b", "a</", "b"},
    {"<think>a</think</think>b", "a</think", "b"},
};

static const struct row granite_rows[] = {
    {"Here is my thought process: x\nHere is my response: y", " x\n", " y"},
    {"Here is my response: y", "", "Here is my response: y"},
    {"Here it is", "", "Here it is"},
};

#define OPEN_ANALYSIS "<|channel|>analysis<|message|>"
#define OPEN_FINAL    "<|channel|>final<|message|>"
#define NEXT          "<|end|><|start|>assistant"

static const struct row harmony_rows[] = {
    {OPEN_ANALYSIS "A" NEXT OPEN_FINAL "B", "A", "B"},
    {OPEN_ANALYSIS "A" NEXT OPEN_ANALYSIS "B" NEXT OPEN_FINAL "C", "AB", "C"},
    {OPEN_FINAL "B", "", "B"},
    {OPEN_ANALYSIS "A", "A", ""},
    {"B", "", "B"},
};

static const char *const think_tokens[] = {"<think>", "</think>", "<|end|>"};
static const char *const harmony_tokens[] = {"<|channel|>", "<|message|>", "<|end|>", "<|start|>"};

/* No special tokens; tokens of the tags that are hidden, or shown; tokens of harmony. */
static const struct gguf_vocab bytes_alone = {.pre = "gpt-2"};
static const struct gguf_vocab hidden = {.pre = "gpt-2", .control = think_tokens, .n_control = 3};
static const struct gguf_vocab shown = {.pre = "gpt-2", .user = think_tokens, .n_user = 3};
static const struct gguf_vocab channels = {
    .pre = "gpt-2", .control = harmony_tokens, .n_control = 4};

static struct tokenizer *open_vocab(const struct gguf_vocab *vocab)
{
    struct gguf_writer w = {0};
    struct checkpoint *ckpt;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    gguf_begin(&w);
    gguf_vocab(&w, vocab);
    gguf_finish(&w);
    if (gguf_open(&w, &ckpt, &err) || tokenizer_open(ckpt, &tok, &err))
        fail_msg("%s", err.message);
    gguf_writer_fini(&w);
    checkpoint_close(ckpt);
    return tok;
}

/* --- a run --- */

struct run {
    const struct tokenizer *tok;
    struct reasoning *reasoning;
    struct strbuf texts[2]; /* content, reasoning */
    uint32_t n_pushed, n_given, n_reasoning;
};

static void take(struct run *run, const struct reasoning_delta *delta)
{
    size_t begin = 0;
    for (size_t i = 0; i < delta->n_parts; i++) {
        const struct reasoning_part *part = &delta->parts[i];
        strbuf_add(&run->texts[part->is_reasoning], delta->text + begin, part->end - begin);
        run->n_given += part->n_ids;
        run->n_reasoning += part->is_reasoning ? part->n_ids : 0;
        begin = part->end;
    }
}

static void push(struct run *run, int64_t token, const char *text, size_t n_bytes)
{
    struct reasoning_delta delta;
    struct error err;
    assert_int_equal(reasoning_push(run->reasoning, token, text, n_bytes, 1, &delta, &err), 0);
    run->n_pushed++;
    take(run, &delta);
    /* an id is held only with its text */
    assert_true(run->n_given <= run->n_pushed);
}

/* Pushes a text up to its next special token. Returns the bytes that were pushed. */
static size_t push_some(struct run *run, const char *text, size_t n_bytes)
{
    size_t n_plain = 0;
    while (n_plain < n_bytes && !tokenizer_control_at(run->tok, text + n_plain, n_bytes - n_plain))
        n_plain++;
    if (n_plain) {
        push(run, -1, text, n_plain);
        return n_plain;
    }
    for (size_t n = n_bytes; n > 0; n--) {
        int32_t id = tokenizer_find(run->tok, text, n);
        if (id < 256)
            continue;
        assert_true(reasoning_has_token(run->reasoning, (uint32_t)id));
        push(run, id, text, n);
        return n;
    }
    fail();
    return 0;
}

static void push_text(struct run *run, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes;)
        i += push_some(run, text + i, n_bytes - i);
}

static void begin_run(struct run *run, const struct tokenizer *tok, const char *template)
{
    struct error err;
    const struct reasoning_family *family = reasoning_families_in_template(template);
    assert_non_null(family);
    *run = (struct run){.tok = tok};
    assert_int_equal(reasoning_create(family, tok, &run->reasoning, &err), 0);
}

static void end_run(struct run *run, const struct row *row)
{
    struct reasoning_delta delta;
    struct error err;
    assert_int_equal(reasoning_flush(run->reasoning, &delta, &err), 0);
    take(run, &delta);
    assert_string_equal(strbuf_str(&run->texts[1]), row->reasoning);
    assert_string_equal(strbuf_str(&run->texts[0]), row->content);
    assert_int_equal(run->n_given, run->n_pushed);
    strbuf_fini(&run->texts[0]);
    strbuf_fini(&run->texts[1]);
    reasoning_destroy(run->reasoning);
}

/* True if a cut there goes through a special token. */
static bool cuts_token(const struct tokenizer *tok, const char *text, size_t n_bytes, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (!tokenizer_control_at(tok, text + i, n_bytes - i))
            continue;
        size_t n = n_bytes - i;
        while (tokenizer_find(tok, text + i, n) < 256)
            n--;
        if (at > i && at < i + n)
            return true;
    }
    return false;
}

/* The text whole, byte by byte, and cut at every two places. */
static void check_row(const struct tokenizer *tok, const char *template, const struct row *row)
{
    struct run run;
    size_t n = strlen(row->raw);
    for (size_t i = 0; i <= n; i++)
        for (size_t k = i; k <= n; k++) {
            if (cuts_token(tok, row->raw, n, i) || cuts_token(tok, row->raw, n, k))
                continue;
            begin_run(&run, tok, template);
            push_text(&run, row->raw, i);
            push_text(&run, row->raw + i, k - i);
            push_text(&run, row->raw + k, n - k);
            end_run(&run, row);
        }
    begin_run(&run, tok, template);
    for (size_t i = 0; i < n;) {
        bool special = tokenizer_control_at(tok, row->raw + i, n - i);
        i += push_some(&run, row->raw + i, special ? n - i : 1);
    }
    end_run(&run, row);
}

#define CHECK_ROWS(tok, template, rows)                                                            \
    for (size_t i_row = 0; i_row < sizeof(rows) / sizeof((rows)[0]); i_row++)                      \
    check_row(tok, template, &(rows)[i_row])

static void test_text_markers_when_cut_anywhere_then_the_parts_are_the_same(void **state)
{
    (void)state;
    struct tokenizer *tok = open_vocab(&bytes_alone);
    CHECK_ROWS(tok, "</think>", think_rows);
    CHECK_ROWS(tok, "</think>", text_rows);
    CHECK_ROWS(tok, "Here is my response:", granite_rows);
    CHECK_ROWS(tok, OPEN_FINAL, harmony_rows);
    tokenizer_close(tok);
}

static void test_token_markers_when_cut_anywhere_then_the_parts_are_the_same(void **state)
{
    (void)state;
    struct tokenizer *tok = open_vocab(&hidden);
    CHECK_ROWS(tok, "</think>", think_rows);
    tokenizer_close(tok);
    tok = open_vocab(&channels);
    CHECK_ROWS(tok, OPEN_FINAL, harmony_rows);
    tokenizer_close(tok);
}

/* A model that writes about the tag, in plain tokens, is still thinking. */
static void test_token_markers_when_a_text_spells_them_then_it_is_text(void **state)
{
    static const struct row row = {"", "a</think>b", "c<think>"};
    struct run run;
    (void)state;
    struct tokenizer *tok = open_vocab(&shown);
    begin_run(&run, tok, "</think>");
    push(&run, tokenizer_find(tok, "<think>", 7), "<think>", 7);
    push(&run, -1, "a</think>b", 10);
    push(&run, tokenizer_find(tok, "</think>", 8), "</think>", 8);
    push(&run, -1, "c", 1);
    push(&run, tokenizer_find(tok, "<think>", 7), "<think>", 7); /* too late to open a thought */
    assert_int_equal(run.n_reasoning, 3);
    end_run(&run, &row);
    tokenizer_close(tok);
}

static void test_ids_when_markers_have_no_text_then_they_count_as_reasoning(void **state)
{
    static const struct row row = {"", "a", "b"};
    struct run run;
    (void)state;
    struct tokenizer *tok = open_vocab(&hidden);
    begin_run(&run, tok, "</think>");
    push(&run, tokenizer_find(tok, "<think>", 7), "", 0);
    push(&run, -1, "", 0); /* another token without text */
    push(&run, -1, "a", 1);
    assert_true(reasoning_is_thinking(run.reasoning));
    push(&run, tokenizer_find(tok, "</think>", 8), "", 0);
    assert_false(reasoning_is_thinking(run.reasoning));
    assert_int_equal(run.n_reasoning, 4);
    push(&run, -1, "b", 1);
    assert_int_equal(run.n_given, 5);
    assert_int_equal(run.n_reasoning, 4);
    end_run(&run, &row);
    tokenizer_close(tok);
}

/* --- the prompt --- */

static void check_prompt(const struct tokenizer *tok, const char *prompt, bool is_open)
{
    struct token_list ids = {0};
    struct run run;
    struct error err;
    begin_run(&run, tok, "</think>");
    assert_int_equal(
        tokenizer_encode(tok, prompt, strlen(prompt), TOKENIZER_PARSE_SPECIAL, &ids, NULL, &err),
        0);
    reasoning_read_prompt(run.reasoning, tok, ids.ids, (uint32_t)ids.n_ids);
    assert_int_equal(reasoning_is_thinking(run.reasoning), is_open);
    reasoning_destroy(run.reasoning);
    token_list_fini(&ids);
}

static void test_prompt_when_it_ends_with_an_open_marker_then_the_thought_is_open(void **state)
{
    static const struct gguf_vocab *const vocabs[] = {&bytes_alone, &hidden, &shown};
    static const struct {
        const char *prompt;
        bool is_open;
    } rows[] = {
        {"user: hi\nassistant: <think>", true},
        {"user: hi\nassistant: <think>\n", true},
        {"<think> \n\n", true},
        {"user: <think>\nassistant: ", false},
        {"assistant: <think>\n\n</think>\n\n", false},
        {"assistant: ", false},
        {"<think", false},
        {"", false},
    };
    (void)state;
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++) {
        struct tokenizer *tok = open_vocab(vocabs[v]);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            check_prompt(tok, rows[i].prompt, rows[i].is_open);
        tokenizer_close(tok);
    }
    /* a marker's literal that stayed text is no marker */
    struct tokenizer *tok = open_vocab(&hidden);
    struct token_list ids = {0};
    struct run run;
    struct error err;
    begin_run(&run, tok, "</think>");
    assert_int_equal(tokenizer_encode(tok, "<think>\n", 8, 0, &ids, NULL, &err), 0);
    reasoning_read_prompt(run.reasoning, tok, ids.ids, (uint32_t)ids.n_ids);
    assert_false(reasoning_is_thinking(run.reasoning));
    reasoning_destroy(run.reasoning);
    token_list_fini(&ids);
    tokenizer_close(tok);
}

static void test_states_when_the_prompt_is_within_a_part_then_the_text_goes_on(void **state)
{
    static const struct row thinks = {"", "go on", "end"}, answers = {"", "", "<think>a</think>"};
    struct run run;
    (void)state;
    struct tokenizer *tok = open_vocab(&bytes_alone);
    begin_run(&run, tok, "</think>");
    reasoning_set_state(run.reasoning, REASONING_THINKS);
    push_text(&run, "go on</think>end", 16);
    end_run(&run, &thinks);
    begin_run(&run, tok, "</think>");
    reasoning_set_state(run.reasoning, REASONING_ANSWERS);
    push_text(&run, "<think>a</think>", 16);
    end_run(&run, &answers);
    tokenizer_close(tok);
}

/* --- families --- */

static void test_families_when_a_template_has_their_markers_then_they_are_found(void **state)
{
    static const char *const rows[][2] = {
        {"{{ '<|start|>assistant<|channel|>analysis<|message|>' }}", "harmony"},
        {"{% if '<|START_THINKING|>' in x %}", "command"},
        {"[THINK]{{ m }}[/THINK]", "mistral"},
        {"{{ '<seed:think>' }}", "seed"},
        {"{{ '<|inner_prefix|>' }}", "apertus"},
        {"◁think▷", "kimi"},
        {"begin with 'Here is my thought process:'", "granite"},
        {"[|assistant|]<thought>", "exaone"},
        {"content.split('</think>')[-1]", "think"},
        {"part.split('<channel|>')", "gemma"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct reasoning_family *family = reasoning_families_in_template(rows[i][0]);
        assert_non_null(family);
        assert_string_equal(family->name, rows[i][1]);
    }
    assert_null(reasoning_families_in_template("{{ messages[0].content }} thinks"));
    struct tokenizer *tok = open_vocab(&bytes_alone);
    assert_null(reasoning_families_of(tok));
    tokenizer_close(tok);
    tok = open_vocab(&hidden);
    assert_string_equal(reasoning_families_of(tok)->name, "think");
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_markers_when_cut_anywhere_then_the_parts_are_the_same),
        cmocka_unit_test(test_token_markers_when_cut_anywhere_then_the_parts_are_the_same),
        cmocka_unit_test(test_token_markers_when_a_text_spells_them_then_it_is_text),
        cmocka_unit_test(test_ids_when_markers_have_no_text_then_they_count_as_reasoning),
        cmocka_unit_test(test_prompt_when_it_ends_with_an_open_marker_then_the_thought_is_open),
        cmocka_unit_test(test_states_when_the_prompt_is_within_a_part_then_the_text_goes_on),
        cmocka_unit_test(test_families_when_a_template_has_their_markers_then_they_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
