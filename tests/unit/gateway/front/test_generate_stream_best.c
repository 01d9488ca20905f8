/* GenerateStream: best_of, which is sent once the best are known. */
#include <string.h>

#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_stream.h"

static struct fixture f;
static struct client_bidi bidi;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void finish(void)
{
    bidi_close(&bidi);
    fixture_stop(&f);
}

/* Returns the index of the k-th most likely of n choices. */
static uint32_t ranked(const char *text, uint64_t seed, uint32_t n, uint32_t max_tokens, uint32_t k)
{
    uint32_t prompt[64], order[STREAM_MAX_CHOICES];
    double sums[STREAM_MAX_CHOICES];
    size_t n_prompt = strlen(text);
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (unsigned char)text[i];
    for (uint32_t i = 0; i < n; i++) {
        sums[i] = fake_logprob_sum(prompt, n_prompt, seed, i, max_tokens);
        order[i] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++)
            if (sums[order[j]] > sums[order[i]]) {
                uint32_t t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
    return order[k];
}

static void expect_best(const char *id, const struct client_request *request, uint32_t best_of)
{
    struct client_answer *answer = bidi_wait_over(&bidi, id);
    uint32_t prompt[64];
    size_t n_prompt = strlen(request->text);
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (unsigned char)request->text[i];
    assert_int_equal(answer->n_finished, request->n);
    assert_int_equal(answer->n_usage_tokens, best_of * request->max_tokens);
    for (uint32_t k = 0; k < request->n; k++) {
        uint32_t choice = ranked(request->text, request->seed, best_of, request->max_tokens, k);
        assert_int_equal(answer->n_ids[k], request->max_tokens);
        for (uint32_t i = 0; i < request->max_tokens; i++)
            assert_int_equal(answer->ids[k][i],
                             fake_token(prompt, n_prompt, request->seed, choice, i));
    }
    assert_int_equal(answer->n_ids[request->n], 0);
}

static void test_best_of_sends_the_most_likely_when_all_have_ended(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct client_request request = {
            .max_tokens = 40, .n = 1 + (uint32_t)seed % 3, .seed = seed, .text = "the best"};
        fixture_init(&f);
        f.workers[0].stop_after = f.workers[1].stop_after = 20;
        fixture_start(&f, 2);
        bidi_open(&f, NULL, 0, &bidi);
        bidi_start_with(&bidi, "b", &request,
                        &(struct bidi_extra){.best_of = 6, .window_ms = 1000});
        fixture_pause_ms(100);
        assert_int_equal(bidi_answer(&bidi, "b")->n_tokens, 0);
        unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
        fake_worker_stop_after(&f.workers[1 - first], UINT32_MAX);
        fake_worker_kill(&f.workers[first]);
        expect_best("b", &request, 6);
        finish();
    }
}

/* Text that is held until the best answers are known must not block other requests. */
static void test_best_of_when_it_has_much_then_the_others_go_on(void **state)
{
    (void)state;
    struct client_request best = {.max_tokens = 300, .seed = 1},
                          request = {.max_tokens = 40, .seed = 2};
    fixture_init(&f);
    f.config.limits.max_stream_pending_bytes = 65536;
    f.workers[0].text_bytes = 500;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start_with(&bidi, "b", &best, &(struct bidi_extra){.best_of = 8});
    fixture_pause_ms(150); /* 20 steps would exceed the limit by then */
    bidi_pause(&bidi, "b", true);
    bidi_start(&bidi, "r", &request);
    bidi_expect_tokens(&bidi, "r", &request, true);
    bidi_pause(&bidi, "b", false);
    assert_int_equal(bidi_wait_over(&bidi, "b")->n_tokens, 300);
    finish();
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_best_of_sends_the_most_likely_when_all_have_ended, forget),
        cmocka_unit_test_setup(test_best_of_when_it_has_much_then_the_others_go_on, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
