/* Reasoning and content in an engine's events, also behind a resume at every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "tests/unit/engine/support/support_engine.h"

/* The texts that the events of a request bring. */
struct seen {
    struct strbuf texts[2]; /* content, reasoning */
    uint32_t n_reasoning;
    enum finish_reason reason;
};

static void see_event(const struct engine_event *event, struct seen *seen, bool *done)
{
    if (event->type == ENGINE_EVENT_TOKENS)
        strbuf_add(&seen->texts[event->is_reasoning], event->text, event->n_text_bytes);
    if (event->type != ENGINE_EVENT_FINISHED)
        return;
    seen->reason = event->reason;
    seen->n_reasoning = event->n_reasoning;
    assert_int_equal(event->usage.n_reasoning_tokens, event->n_reasoning);
    *done = true;
}

static void run_seen(struct engine *engine, struct engine_event_buffer *buffer,
                     struct engine_request *req, struct seen *seen)
{
    struct error err = {0};
    uint64_t id;
    bool done = false;
    *seen = (struct seen){0};
    if (engine_submit(engine, req, &id, &err))
        fail_msg("%s", err.message);
    while (!done) {
        const struct engine_event *events;
        size_t n = engine_read_events(engine, buffer, &events);
        for (size_t i = 0; i < n; i++)
            see_event(&events[i], seen, &done);
        if (!done)
            run_pause();
    }
}

static void seen_fini(struct seen *seen)
{
    strbuf_fini(&seen->texts[0]);
    strbuf_fini(&seen->texts[1]);
}

/* A replayed text: its ids, and its parts. */
struct replay {
    const char *text, *reasoning, *content;
    const char *stop; /* NULL: none */
};

static const struct replay replays[] = {
    {"<think>a b.</think>c d", "a b.", "c d", NULL},
    {" \n<think>one\xC3\xA9</think>\n\ntwo", "one\xC3\xA9", "\n\ntwo", NULL},
    {"<think>open", "open", "", NULL},
    {"no thought", "", "no thought", NULL},
    {"<think>stop here</think>go. stop there", "stop here", "go. ", "stop"},
};

/* The client has n_bytes of the text: the rest comes, each part under its kind. */
static void check_resume(struct engine *engine, struct engine_event_buffer *buffer,
                         const struct replay *row, const struct token_list *ids, uint32_t n_bytes)
{
    const char *const stops[] = {row->stop ? row->stop : ""};
    size_t n_thought = strlen(row->reasoning);
    const struct engine_resume resume = {ids->ids, (uint32_t)ids->n_ids, n_bytes, false};
    struct engine_request req = run_simple(10, (uint32_t)ids->n_ids);
    struct seen seen;
    req.reasoning = ENGINE_REASONING_SPLIT;
    req.reasoning_template = "</think>";
    req.resume = &resume;
    req.stopping.stop = stops;
    req.stopping.n_stop = row->stop != NULL;
    run_seen(engine, buffer, &req, &seen);
    assert_string_equal(strbuf_str(&seen.texts[1]),
                        row->reasoning + (n_bytes < n_thought ? n_bytes : n_thought));
    assert_string_equal(strbuf_str(&seen.texts[0]),
                        row->content + (n_bytes > n_thought ? n_bytes - n_thought : 0));
    assert_int_equal(seen.reason, row->stop ? FINISH_STOP : FINISH_LENGTH);
    assert_int_equal(seen.n_reasoning > 0, n_thought > 0);
    seen_fini(&seen);
}

static void test_resume_when_at_any_byte_then_the_rest_comes_in_its_parts(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_event_buffer *buffer;
    struct error err = {0};
    assert_int_equal(engine_event_buffer_create(&buffer, &err), 0);
    for (size_t i = 0; i < sizeof(replays) / sizeof(replays[0]); i++) {
        const struct replay *row = &replays[i];
        struct token_list ids = {0};
        size_t n_lost;
        assert_int_equal(tokenizer_encode(engine_tokenizer(engine), row->text, strlen(row->text), 0,
                                          &ids, &n_lost, &err),
                         0);
        assert_int_equal(n_lost, 0);
        uint32_t n = (uint32_t)(strlen(row->reasoning) + strlen(row->content));
        /* A stop in text that the client has did not end the choice. */
        for (uint32_t k = 0; k <= n; k++)
            check_resume(engine, buffer, row, &ids, k);
        token_list_fini(&ids);
    }
    engine_event_buffer_destroy(buffer);
    run_close(engine);
}

/* Without a family, and turned off, an answer has the bytes that it had. */
static void test_models_without_markers_when_asked_to_split_then_nothing_changes(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result off, on;
    struct engine_request req = run_simple(10, 60);
    run_submit(engine, &req, &off);
    run_wait(engine, &off, 1);
    assert_false(engine_tells_reasoning(engine_tokenizer(engine)));
    req.reasoning = ENGINE_REASONING_SPLIT;
    run_submit(engine, &req, &on);
    run_wait(engine, &on, 1);
    run_assert_same(&off, &on, "asked to split");
    run_result_fini(&on);
    req.reasoning_template = "</think>"; /* markers that never come */
    run_submit(engine, &req, &on);
    run_wait(engine, &on, 1);
    run_assert_same(&off, &on, "with markers that never come");
    run_result_fini(&off);
    run_result_fini(&on);
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_when_at_any_byte_then_the_rest_comes_in_its_parts),
        cmocka_unit_test(test_models_without_markers_when_asked_to_split_then_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
