/* Tests of openai_answer.h and openai_logprobs.h: the bytes of streams and objects. */
#include <math.h>
#include <string.h>

#include "server/gateway/openai/openai_answer.h"
#include "server/gateway/relay/relay.h"
#include "tests/unit/base/support_cmocka.h"

#define HEAD                                                                                       \
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":7,"             \
    "\"model\":\"m\",\"system_fingerprint\":\"fp\",\"choices\":["
#define USAGE(p, c, t, h)                                                                          \
    "\"usage\":{\"prompt_tokens\":" p ",\"completion_tokens\":" c ",\"total_tokens\":" t           \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" h                                             \
    "},\"completion_tokens_details\":{\"reasoning_tokens\":0}}"

static struct openai_answer chat_answer(void)
{
    return (struct openai_answer){.is_chat = true, .id = "chatcmpl-1", .model = "m", .created = 7};
}

static struct relay_frame token_frame(char *text, uint32_t *ids, size_t n)
{
    struct relay_frame frame = {.kind = RELAY_FRAME_TOKENS, .tokens = SLUICE__V1__TOKENS__INIT};
    frame.tokens.text = text;
    frame.tokens.ids = ids;
    frame.tokens.n_ids = n;
    return frame;
}

static void give_info(struct openai_answer *answer, struct openai_answer_prompt *prompt)
{
    Sluice__V1__PromptInfo info = SLUICE__V1__PROMPT_INFO__INIT;
    static char fingerprint[] = "fp";
    info.fingerprint = fingerprint;
    info.n_prompt_tokens = 5;
    info.n_cached_tokens = 4;
    openai_answer_prompt_info(answer, prompt, &info);
    openai_answer_prompt_info(answer, prompt, &info); /* a further part counts nothing again */
}

/* The role comes with the first token, and the finish reason with the last token. Usage has a chunk
 * of its own. */
static void test_a_chat_stream_has_these_bytes(void **state)
{
    (void)state;
    static const char expected[] =
        HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"logprobs\":null,"
             "\"finish_reason\":null}],\"usage\":null}\n\n" HEAD
             "{\"index\":0,\"delta\":{\"content\":\" \\\"x\\\"\"},\"logprobs\":null,"
             "\"finish_reason\":\"length\"}],\"usage\":null}\n\n" HEAD
             "]," USAGE("5", "3", "8", "4") "}\n\ndata: [DONE]\n\n";
    struct openai_answer answer = chat_answer();
    struct openai_answer_prompt prompt = {0};
    struct openai_answer_choice choice = {0};
    struct strbuf out = {0};
    uint32_t ids[] = {1, 2};
    char first[] = "Hi", second[] = " \"x\"";
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    struct relay_frame frame = token_frame(first, ids, 1);
    finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    answer.include_usage = true;
    give_info(&answer, &prompt);
    openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
    openai_answer_flush(&answer, &out);
    frame = token_frame(second, ids, 2);
    openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
    openai_answer_finish(&answer, &prompt, &choice, 0, &finished, &out);
    openai_answer_flush(&answer, &out);
    openai_answer_end(&answer, &out);
    assert_string_equal(strbuf_str(&out), expected);
    openai_answer_fini(&answer);
    strbuf_fini(&out);
}

/* The reasoning has both names that other servers use, and is not in `content`. */
static void test_reasoning_comes_under_both_names(void **state)
{
    (void)state;
    static const char expected[] =
        HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null,"
             "\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"},\"logprobs\":null,"
             "\"finish_reason\":null}]}\n\n" HEAD
             "{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"logprobs\":null,"
             "\"finish_reason\":\"stop\"}]}\n\n";
    static const char hidden[] =
        HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"logprobs\":null,"
             "\"finish_reason\":\"stop\"}]}\n\n";
    for (int hides = 0; hides < 2; hides++) {
        struct openai_answer answer = chat_answer();
        struct openai_answer_prompt prompt = {0};
        struct openai_answer_choice choice = {0};
        struct strbuf out = {0};
        uint32_t ids[] = {1, 2};
        char first[] = "hm", second[] = "Hi";
        Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
        struct relay_frame frame = token_frame(first, ids, 2);
        frame.tokens.kind = SLUICE__V1__PART_KIND__PART_KIND_REASONING;
        answer.hides_reasoning = hides;
        give_info(&answer, &prompt);
        openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
        frame = token_frame(second, ids, 1);
        openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
        openai_answer_finish(&answer, &prompt, &choice, 0, &finished, &out);
        assert_string_equal(strbuf_str(&out), hides ? hidden : expected);
        assert_int_equal(answer.n_reasoning_tokens, 2);
        assert_int_equal(answer.n_generated_tokens, 3);
        openai_answer_fini(&answer);
        strbuf_fini(&out);
    }
}

/* Without include_usage no chunk has a key "usage", and none has an empty list of choices. */
static void test_usage_comes_only_where_it_was_asked_for(void **state)
{
    (void)state;
    for (int continuous = 0; continuous < 2; continuous++) {
        struct openai_answer answer = chat_answer();
        struct openai_answer_prompt prompt = {0};
        struct openai_answer_choice choice = {0};
        struct strbuf out = {0};
        uint32_t ids[] = {1};
        char text[] = "a";
        struct relay_frame frame = token_frame(text, ids, 1);
        answer.continuous_usage = continuous;
        give_info(&answer, &prompt);
        openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
        openai_answer_end(&answer, &out);
        assert_true((strstr(strbuf_str(&out), USAGE("5", "1", "6", "4")) != NULL) == continuous);
        assert_true((strstr(strbuf_str(&out), "\"usage\"") != NULL) == continuous);
        assert_null(strstr(strbuf_str(&out), "\"choices\":[]"));
        openai_answer_fini(&answer);
        strbuf_fini(&out);
    }
}

/* The ends of choices whose last tokens were sent before are chunks of their own. */
static void test_the_end_of_another_choice_is_a_chunk_of_its_own(void **state)
{
    (void)state;
    struct openai_answer answer = chat_answer();
    struct openai_answer_prompt prompt = {0};
    struct openai_answer_choice choices[2] = {0};
    struct strbuf out = {0};
    uint32_t ids[] = {1};
    char text[] = "a";
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    struct relay_frame frame = token_frame(text, ids, 1);
    give_info(&answer, &prompt);
    openai_answer_tokens(&answer, &prompt, &choices[0], 0, &frame, &out);
    openai_answer_tokens(&answer, &prompt, &choices[1], 1, &frame, &out);
    openai_answer_finish(&answer, &prompt, &choices[0], 0, &finished, &out);
    openai_answer_finish(&answer, &prompt, &choices[1], 1, &finished, &out);
    openai_answer_end(&answer, &out);
    int n_chunks = 0, n_null = 0, n_stop = 0;
    for (const char *p = strbuf_str(&out); (p = strstr(p, "data: {")); p++)
        n_chunks++;
    for (const char *p = strbuf_str(&out); (p = strstr(p, "\"finish_reason\":null")); p++)
        n_null++;
    for (const char *p = strbuf_str(&out); (p = strstr(p, "\"finish_reason\":\"stop\"")); p++)
        n_stop++;
    assert_int_equal(n_chunks, 4);
    assert_int_equal(n_null, 2);
    assert_int_equal(n_stop, 2);
    openai_answer_fini(&answer);
    strbuf_fini(&out);
}

/* --- log-probabilities --- */

struct entry {
    Sluice__V1__TokenLogprob base, *at;
    Sluice__V1__TopLogprob top[2], *tops[2];
};

static void fill_entry(struct entry *entry, const char *token, size_t n, float logprob)
{
    static const Sluice__V1__TopLogprob none = SLUICE__V1__TOP_LOGPROB__INIT;
    *entry = (struct entry){.base = SLUICE__V1__TOKEN_LOGPROB__INIT};
    entry->base.token.data = (uint8_t *)(uintptr_t)token;
    entry->base.token.len = n;
    entry->base.logprob = logprob;
    entry->at = &entry->base;
    for (size_t i = 0; i < 2; i++) {
        entry->top[i] = none;
        entry->tops[i] = &entry->top[i];
    }
    entry->base.top = entry->tops;
}

static void add_top(struct entry *entry, const char *token, float logprob)
{
    Sluice__V1__TopLogprob *top = &entry->top[entry->base.n_top++];
    top->token.data = (uint8_t *)(uintptr_t)token;
    top->token.len = strlen(token);
    top->logprob = logprob;
}

/* The first token of a prompt has null in both lists (lm-eval's local-completions). */
static void test_completions_have_four_lists(void **state)
{
    (void)state;
    struct entry entries[3];
    struct openai_logprobs lists = {0};
    struct strbuf out = {0};
    fill_entry(&entries[0], "a", 1, NAN);
    fill_entry(&entries[1], "\xf0\x9f", 2, -1.5f);
    add_top(&entries[1], "\xf0\x9f", -1.5f);
    add_top(&entries[1], "b", -0.25f);
    fill_entry(&entries[2], "\x98\x80", 2, -INFINITY);
    Sluice__V1__TokenLogprob *list[] = {entries[0].at, entries[1].at, entries[2].at};
    openai_logprobs_add(&lists, list, 3, 2, NULL);
    openai_logprobs_write(&lists, &out);
    assert_string_equal(strbuf_str(&out),
                        "{\"tokens\":[\"a\",\"bytes:\\\\xf0\\\\x9f\",\"bytes:\\\\x98\\\\x80\"],"
                        "\"token_logprobs\":[null,-1.5,-3.4028234e+38],"
                        "\"top_logprobs\":[null,{\"bytes:\\\\xf0\\\\x9f\":-1.5,\"b\":-0.25},"
                        "{\"bytes:\\\\x98\\\\x80\":-3.4028234e+38}],\"text_offset\":[0,1,2]}");
    openai_logprobs_fini(&lists);
    strbuf_fini(&out);
}

/* Symptom: the first token of a message began at its end. Its bytes were not its text, as with a
 * leading space of SentencePiece. */
static void test_offsets_do_not_depend_on_the_cuts_between_messages(void **state)
{
    (void)state;
    struct entry entries[2];
    static const uint32_t ends[] = {5, 9};
    const struct openai_logprobs_text both = {"Helloyou!", ends, 0, false};
    const struct openai_logprobs_text first = {"Hello", ends, 0, false};
    const struct openai_logprobs_text second = {"you!", ends + 1, 5, false};
    struct openai_logprobs whole = {0}, parts = {0};
    fill_entry(&entries[0], " Hello", 6, -1);
    fill_entry(&entries[1], " you!", 5, -1);
    Sluice__V1__TokenLogprob *list[] = {entries[0].at, entries[1].at};
    openai_logprobs_add(&whole, list, 2, 2, &both);
    openai_logprobs_add(&parts, list, 1, 2, &first);
    openai_logprobs_add(&parts, list + 1, 1, 2, &second);
    assert_string_equal(strbuf_str(&whole.offsets), "0,5");
    assert_string_equal(strbuf_str(&parts.offsets), "0,5");
    openai_logprobs_fini(&whole);
    openai_logprobs_fini(&parts);
}

/* Offsets count code points of the text: a hidden special token and a cut stop take none. */
static void test_offsets_follow_the_text(void **state)
{
    (void)state;
    struct entry entries[4];
    struct openai_logprobs lists = {0};
    struct strbuf out = {0};
    static const uint32_t ends[] = {12, 12, 14, 15}; /* the stream had 10 bytes before */
    const struct openai_logprobs_text text = {"\xc3\xa9"
                                              "abc",
                                              ends, 10, false};
    fill_entry(&entries[0], "\xc3\xa9", 2, -1);
    fill_entry(&entries[1], "<|hidden|>", 10, -1);
    fill_entry(&entries[2], "ab", 2, -1);
    fill_entry(&entries[3], "cSTOP", 5, -1);
    Sluice__V1__TokenLogprob *list[] = {entries[0].at, entries[1].at, entries[2].at, entries[3].at};
    lists.n_text = 8;
    openai_logprobs_add(&lists, list, 4, 2, &text);
    openai_logprobs_write(&lists, &out);
    assert_non_null(strstr(strbuf_str(&out), "\"text_offset\":[8,9,9,11]"));
    assert_int_equal(lists.n_text, 12);
    openai_logprobs_fini(&lists);
    strbuf_fini(&out);
}

/* With echo the first text begins with the prompt's. */
static void test_the_first_token_of_an_echo_stands_behind_the_prompt(void **state)
{
    (void)state;
    struct entry entry;
    struct openai_logprobs lists = {0};
    struct strbuf out = {0};
    static const uint32_t ends[] = {7};
    const struct openai_logprobs_text text = {"prompt!", ends, 0, true};
    fill_entry(&entry, "!", 1, -1);
    openai_logprobs_add(&lists, &entry.at, 1, 2, &text);
    openai_logprobs_write(&lists, &out);
    assert_non_null(strstr(strbuf_str(&out), "\"text_offset\":[6]"));
    openai_logprobs_fini(&lists);
    strbuf_fini(&out);
}

static void test_a_chat_has_true_bytes(void **state)
{
    (void)state;
    struct entry entry;
    struct strbuf out = {0};
    fill_entry(&entry, "\xf0\x9f", 2, -0.5f);
    add_top(&entry, "x", -1);
    openai_logprobs_write_chat(&entry.at, 1, 1, &out);
    assert_string_equal(strbuf_str(&out),
                        "{\"content\":[{\"token\":\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-0.5,"
                        "\"bytes\":[240,159],\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-1,"
                        "\"bytes\":[120]}]}],\"refusal\":null}");
    strbuf_fini(&out);
}

/* Each list has the alternatives that its field asked for; the engine gave the larger number. */
static void test_alternatives_beyond_the_number_are_cut(void **state)
{
    (void)state;
    struct entry entry;
    struct openai_logprobs lists = {0};
    struct strbuf out = {0};
    fill_entry(&entry, "a", 1, -2);
    add_top(&entry, "b", -0.5f);
    add_top(&entry, "a", -2);
    entry.base.id = 1;
    entry.top[0].id = 2;
    entry.top[1].id = 1;
    openai_logprobs_write_chat(&entry.at, 1, 0, &out);
    assert_non_null(strstr(strbuf_str(&out), "\"top_logprobs\":[]"));
    openai_logprobs_add(&lists, &entry.at, 1, 0, NULL);
    assert_string_equal(strbuf_str(&lists.top), "{\"a\":-2}");
    openai_logprobs_fini(&lists);
    strbuf_fini(&out);
}

/* --- whole answers --- */

/* The list is that of `content`. Symptoms: it had the tokens of the reasoning too, and hidden
 * reasoning could be read from the ids and log-probabilities. */
static void check_whole_reasoning(bool hides)
{
    struct openai_answer answer = chat_answer();
    struct openai_answer_prompt prompt = {0};
    struct entry entries[4];
    struct strbuf out = {0};
    static const struct relay_run runs[] = {
        {.begin_id = 0, .kind = SLUICE__V1__PART_KIND__PART_KIND_REASONING},
        {.begin_id = 2, .kind = SLUICE__V1__PART_KIND__PART_KIND_UNSPECIFIED},
        {.begin_id = 3, .kind = SLUICE__V1__PART_KIND__PART_KIND_REASONING},
    };
    uint32_t ids[] = {11, 12, 13, 14};
    char text[] = "Hi", reasoning[] = "hm";
    static const char *const names[] = {"h", "m", "Hi", "x"};
    Sluice__V1__TokenLogprob *list[4];
    Sluice__V1__CompleteResponse whole = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    Sluice__V1__Choice choice = SLUICE__V1__CHOICE__INIT, *choices[] = {&choice};
    struct relay_frame frame = {.kind = RELAY_FRAME_WHOLE, .whole = &whole};
    for (size_t i = 0; i < 4; i++) {
        fill_entry(&entries[i], names[i], strlen(names[i]), -1);
        list[i] = entries[i].at;
    }
    choice.text = text;
    choice.reasoning_text = reasoning;
    choice.ids = ids;
    choice.logprobs = list;
    choice.n_ids = choice.n_logprobs = 4;
    whole.choices = choices;
    whole.n_choices = 1;
    frame.whole_runs[0] = runs;
    frame.n_whole_runs[0] = 3;
    answer.returns_ids = answer.wants_logprobs = true;
    answer.hides_reasoning = hides;
    openai_answer_choices(&answer, &prompt, &frame, 0);
    assert_non_null(strstr(strbuf_str(&prompt.choices),
                           hides ? "\"token_ids\":[13]" : "\"token_ids\":[11,12,13,14]"));
    assert_null(strstr(strbuf_str(&prompt.choices), "\"h\""));
    assert_null(strstr(strbuf_str(&prompt.choices), "\"x\""));
    assert_non_null(strstr(strbuf_str(&prompt.choices), "{\"token\":\"Hi\""));
    openai_answer_prompt_fini(&prompt);
    openai_answer_fini(&answer);
    strbuf_fini(&out);
}

static void test_reasoning_is_in_no_list_of_a_whole_answer(void **state)
{
    (void)state;
    check_whole_reasoning(false);
    check_whole_reasoning(true);
}

/* Chunks of reasoning listed their tokens as those of `content`. */
static void test_a_chunk_of_reasoning_has_no_log_probabilities(void **state)
{
    (void)state;
    struct openai_answer answer = chat_answer();
    struct openai_answer_prompt prompt = {0};
    struct openai_answer_choice choice = {0};
    struct strbuf out = {0};
    struct entry entry;
    uint32_t ids[] = {1};
    char thought[] = "hm", text[] = "Hi";
    struct relay_frame frame = token_frame(thought, ids, 1);
    fill_entry(&entry, "hm", 2, -1);
    frame.tokens.kind = SLUICE__V1__PART_KIND__PART_KIND_REASONING;
    frame.tokens.logprobs = &entry.at;
    frame.tokens.n_logprobs = 1;
    answer.wants_logprobs = true;
    openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
    openai_answer_flush(&answer, &out);
    assert_non_null(strstr(strbuf_str(&out), "\"logprobs\":null"));
    frame = token_frame(text, ids, 1);
    fill_entry(&entry, "Hi", 2, -1);
    frame.tokens.logprobs = &entry.at;
    frame.tokens.n_logprobs = 1;
    openai_answer_tokens(&answer, &prompt, &choice, 0, &frame, &out);
    openai_answer_flush(&answer, &out);
    assert_non_null(strstr(strbuf_str(&out), "{\"token\":\"Hi\""));
    openai_answer_fini(&answer);
    strbuf_fini(&out);
}

static void test_a_whole_answer_has_these_bytes(void **state)
{
    (void)state;
    struct openai_answer answer = {.id = "cmpl-1", .model = "m", .created = 7, .returns_ids = true};
    struct strbuf out = {0};
    char text[] = "a\nb";
    struct openai_answer_prompt prompts[2] = {0};
    uint32_t ids[] = {1, 2}, prompt_ids[] = {9};
    Sluice__V1__CompleteResponse whole = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    Sluice__V1__PromptInfo info = SLUICE__V1__PROMPT_INFO__INIT;
    Sluice__V1__Choice choice = SLUICE__V1__CHOICE__INIT, *choices[] = {&choice};
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    Sluice__V1__Usage usage = SLUICE__V1__USAGE__INIT;
    struct relay_frame frame = {.kind = RELAY_FRAME_WHOLE, .whole = &whole};
    choice.text = text;
    choice.ids = ids;
    choice.n_ids = 2;
    choice.finished = &finished;
    finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP_STRING;
    info.prompt_token_ids = prompt_ids;
    info.n_prompt_token_ids = 1;
    usage.n_prompt_tokens = 1;
    usage.n_generated_tokens = 2;
    whole.prompt_info = &info;
    whole.usage = &usage;
    whole.choices = choices;
    whole.n_choices = 1;
    /* Symptom: a prompt that ended first had its choice at the front. */
    openai_answer_choices(&answer, &prompts[1], &frame, 1);
    openai_answer_choices(&answer, &prompts[0], &frame, 0);
    openai_answer_whole(&answer, prompts, 2, &out);
    assert_string_equal(
        strbuf_str(&out),
        "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\","
        "\"system_fingerprint\":null,\"choices\":["
        "{\"index\":0,\"text\":\"a\\nb\",\"logprobs\":null,\"token_ids\":[1,2],"
        "\"prompt_token_ids\":[9],\"finish_reason\":\"stop\"},"
        "{\"index\":1,\"text\":\"a\\nb\",\"logprobs\":null,\"token_ids\":[1,2],"
        "\"prompt_token_ids\":[9],\"finish_reason\":\"stop\"}]," USAGE("2", "4", "6", "0") "}\n");
    openai_answer_fini(&answer);
    for (size_t i = 0; i < 2; i++)
        openai_answer_prompt_fini(&prompts[i]);
    strbuf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_chat_stream_has_these_bytes),
        cmocka_unit_test(test_reasoning_comes_under_both_names),
        cmocka_unit_test(test_usage_comes_only_where_it_was_asked_for),
        cmocka_unit_test(test_the_end_of_another_choice_is_a_chunk_of_its_own),
        cmocka_unit_test(test_completions_have_four_lists),
        cmocka_unit_test(test_offsets_follow_the_text),
        cmocka_unit_test(test_offsets_do_not_depend_on_the_cuts_between_messages),
        cmocka_unit_test(test_the_first_token_of_an_echo_stands_behind_the_prompt),
        cmocka_unit_test(test_a_chat_has_true_bytes),
        cmocka_unit_test(test_alternatives_beyond_the_number_are_cut),
        cmocka_unit_test(test_reasoning_is_in_no_list_of_a_whole_answer),
        cmocka_unit_test(test_a_chunk_of_reasoning_has_no_log_probabilities),
        cmocka_unit_test(test_a_whole_answer_has_these_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
