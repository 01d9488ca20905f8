/* Tests of kserve_part.h: the parts of the choices that a frame fills. */
#include <string.h>

#include "server/gateway/kserve/kserve_part.h"
#include "tests/unit/base/support_cmocka.h"

static char words[] = "words";

static void init_logprobs(Sluice__V1__TokenLogprob rows[2], Sluice__V1__TokenLogprob *list[2])
{
    for (size_t i = 0; i < 2; i++) {
        sluice__v1__token_logprob__init(&rows[i]);
        rows[i].logprob = -0.5f;
        list[i] = &rows[i];
    }
}

static void expect_empty(const struct kserve_part *part)
{
    assert_string_equal(part->text, "");
    assert_null(part->reason);
    assert_true(!part->n_tokens && !part->n_logprobs);
}

static void test_tokens_fill_their_choice_and_add_to_its_sum(void **state)
{
    (void)state;
    struct kserve_part parts[RELAY_MAX_CHOICES];
    double sums[RELAY_MAX_CHOICES] = {0, -1};
    struct relay_frame frame = {.kind = RELAY_FRAME_TOKENS, .tokens = SLUICE__V1__TOKENS__INIT};
    Sluice__V1__TokenLogprob rows[2], *list[2];
    init_logprobs(rows, list);
    frame.tokens.choice = 1;
    frame.tokens.text = words;
    frame.tokens.n_ids = 2;
    frame.tokens.logprobs = list;
    frame.tokens.n_logprobs = 2;
    kserve_part_fill(&frame, parts, sums);
    assert_string_equal(parts[1].text, words);
    assert_null(parts[1].reason);
    assert_int_equal(parts[1].n_tokens, 2);
    assert_int_equal(parts[1].n_logprobs, 2);
    assert_true(sums[1] < -1.99 && sums[1] > -2.01);
    for (size_t i = 0; i < RELAY_MAX_CHOICES; i++)
        if (i != 1)
            expect_empty(&parts[i]);
}

static void test_an_end_gives_its_choice_a_reason(void **state)
{
    (void)state;
    static const struct {
        Sluice__V1__FinishReason reason;
        const char *name;
    } rows[] = {
        {SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH, "length"},
        {SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH, "length"},
        {SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP_STRING, "stop"},
        {SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS, "stop"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kserve_part parts[RELAY_MAX_CHOICES];
        double sums[RELAY_MAX_CHOICES] = {0};
        struct relay_frame frame = {.kind = RELAY_FRAME_FINISHED,
                                    .finished = SLUICE__V1__FINISHED__INIT};
        frame.finished.choice = 2;
        frame.finished.reason = rows[i].reason;
        kserve_part_fill(&frame, parts, sums);
        expect_empty(&parts[0]);
        assert_string_equal(parts[2].text, "");
        assert_string_equal(parts[2].reason, rows[i].name);
    }
}

static void test_a_whole_answer_fills_each_choice(void **state)
{
    (void)state;
    struct kserve_part parts[RELAY_MAX_CHOICES];
    double sums[RELAY_MAX_CHOICES] = {0};
    Sluice__V1__CompleteResponse whole = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    Sluice__V1__TokenLogprob rows[2], *list[2];
    Sluice__V1__Choice choices[2] = {SLUICE__V1__CHOICE__INIT, SLUICE__V1__CHOICE__INIT};
    Sluice__V1__Choice *choice_list[] = {&choices[0], &choices[1]};
    struct relay_frame frame = {.kind = RELAY_FRAME_WHOLE, .whole = &whole};
    init_logprobs(rows, list);
    finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS;
    for (size_t i = 0; i < 2; i++) {
        choices[i].finished = &finished;
        choices[i].text = words;
        choices[i].n_ids = i + 1;
        choices[i].logprobs = list;
        choices[i].n_logprobs = i + 1;
    }
    whole.choices = choice_list;
    whole.n_choices = 2;
    kserve_part_fill(&frame, parts, sums);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(parts[i].text, words);
        assert_string_equal(parts[i].reason, "stop");
        assert_int_equal(parts[i].n_tokens, i + 1);
        assert_true(sums[i] < -0.49 * (double)(i + 1) && sums[i] > -0.51 * (double)(i + 1));
    }
    expect_empty(&parts[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_fill_their_choice_and_add_to_its_sum),
        cmocka_unit_test(test_an_end_gives_its_choice_a_reason),
        cmocka_unit_test(test_a_whole_answer_fills_each_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
