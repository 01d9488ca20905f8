/* OpenAI's API over a real socket, with the real gateway and fake workers. The tests are about
 * streams, lost workers, clients that leave, and errors at each stage. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "server/gateway/http/http_front.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

enum { WAIT_MS = 20000 };

static struct fixture f;

static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void start(unsigned n_workers)
{
    f.config.http_listen = "127.0.0.1:0";
    fixture_start(&f, n_workers);
}

/* --- a client --- */

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_front_port(f.gateway->http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static int send_request(const char *method, const char *path, const char *body)
{
    int fd = dial();
    struct strbuf text = {0};
    strbuf_printf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", method,
                  path);
    if (body)
        strbuf_printf(&text, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    else
        strbuf_add_str(&text, "\r\n");
    assert_int_equal(send(fd, text.data, text.n_bytes, MSG_NOSIGNAL), text.n_bytes);
    strbuf_fini(&text);
    return fd;
}

/* Reads until the text has `what` or the server closes. NULL: until the server closes. */
static void read_until(int fd, const char *what, struct strbuf *out)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    char bytes[4096];
    while (!what || !strstr(strbuf_str(out), what)) {
        if (poll(&ready, 1, WAIT_MS) <= 0)
            fail_msg("nothing came; so far: %s", strbuf_str(out));
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n <= 0)
            return;
        strbuf_add(out, bytes, (size_t)n);
    }
}

static unsigned status_of(const struct strbuf *answer)
{
    return (unsigned)strtoul(strbuf_str(answer) + strlen("HTTP/1.1 "), NULL, 10);
}

/* Sends a request and reads the whole answer. */
static unsigned ask(const char *method, const char *path, const char *body, struct strbuf *out)
{
    int fd = send_request(method, path, body);
    strbuf_clear(out);
    read_until(fd, NULL, out);
    close(fd);
    return status_of(out);
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

/* Appends the text between `begin` and `end` behind p, if a chunk has it. */
static void add_between(const char *p, const char *begin, const char *end, struct strbuf *out)
{
    const char *chunk_end = strstr(p, "\n\n");
    const char *from = strstr(p, begin);
    if (!from || from > chunk_end)
        return;
    from += strlen(begin);
    const char *to = strstr(from, end);
    if (to == from)
        return;
    strbuf_add(out, from, (size_t)(to - from));
    strbuf_add_char(out, '|');
}

/* Joins the chunks of a choice. Ids, dates and the places where frames are cut may differ between
 * streams of equal requests. */
static void join_choice(const struct strbuf *answer, unsigned index, struct strbuf *out)
{
    static const char *const lists[][2] = {{"\"token_ids\":[", "]"},
                                           {"\"token_logprobs\":[", "]"},
                                           {"\"text_offset\":[", "]"},
                                           {"\"finish_reason\":\"", "\""}};
    char begin[64];
    snprintf(begin, sizeof(begin), "\"choices\":[{\"index\":%u,", index);
    strbuf_clear(out);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        for (const char *p = strbuf_str(answer); (p = strstr(p, begin)); p++)
            add_between(p, lists[i][0], lists[i][1], out);
    for (char *p = out->data; p && *p; p++)
        *p = *p == ',' ? '|' : *p;
}

#define STREAM "{\"model\":\"m\",\"prompt\":\"a prompt\",\"seed\":7,\"stream\":true,"

/* --- streams --- */

static void test_a_stream_has_every_token_and_one_end(void **state)
{
    (void)state;
    struct strbuf answer = {0};
    char text[FAKE_TEXT_BYTES];
    uint32_t prompt[] = {'a', ' ', 'p', 'r', 'o', 'm', 'p', 't'};
    fixture_init(&f);
    start(1);
    assert_int_equal(ask("POST", "/v1/completions",
                         STREAM "\"max_tokens\":20,\"stream_options\":{\"include_usage\":true}}",
                         &answer),
                     200);
    assert_non_null(strstr(strbuf_str(&answer), "Content-Type: text/event-stream"));
    assert_non_null(strstr(strbuf_str(&answer), "Cache-Control: no-cache\r\n"));
    assert_non_null(strstr(strbuf_str(&answer), "X-Accel-Buffering: no\r\n"));
    assert_non_null(strstr(strbuf_str(&answer), "\"completion_tokens\":20,"));
    assert_int_equal(count(strbuf_str(&answer), "data: [DONE]\n\n"), 1);
    assert_int_equal(count(strbuf_str(&answer), "\"finish_reason\":\"length\""), 1);
    assert_int_equal(count(strbuf_str(&answer), "\"choices\":[],"), 1);
    const char *at = strbuf_str(&answer);
    for (uint32_t i = 0; i < 20; i++) { /* the texts come in their order */
        fake_text(fake_token(prompt, 8, 7, 0, i), 0, text);
        at = strstr(at, text);
        assert_non_null(at);
    }
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* A stream that moves to another worker has the same tokens, log-probabilities and offsets, each
 * once. */
static void test_a_lost_worker_leaves_no_trace_in_the_stream(void **state)
{
    (void)state;
    static const char body[] =
        STREAM "\"max_tokens\":60,\"n\":2,\"logprobs\":1,\"return_token_ids\":true}";
    struct strbuf answer = {0}, moved = {0}, expected = {0}, got = {0};
    fixture_init(&f);
    f.workers[0].step_us = f.workers[1].step_us = 15000; /* long enough to be killed meanwhile */
    start(2);
    assert_int_equal(ask("POST", "/v1/completions", body, &answer), 200);
    int fd = send_request("POST", "/v1/completions", body);
    read_until(fd, "data: ", &moved);
    fake_worker_kill(&f.workers[fixture_busy_worker(&f, 2)]);
    read_until(fd, NULL, &moved);
    close(fd);
    assert_int_equal(count(strbuf_str(&moved), "data: [DONE]\n\n"), 1);
    for (unsigned i = 0; i < 2; i++) {
        join_choice(&answer, i, &expected);
        join_choice(&moved, i, &got);
        assert_int_equal(count(strbuf_str(&got), "|"), 3 * 60 + 1);
        assert_string_equal(strbuf_str(&got), strbuf_str(&expected));
    }
    strbuf_fini(&answer);
    strbuf_fini(&moved);
    strbuf_fini(&expected);
    strbuf_fini(&got);
    fixture_stop(&f);
}

/* Symptom: with n > 1 the reasons came in chunks of their own behind the tokens of all choices. The
 * worker reports the ends within the last tokens' items, or behind all tokens of the step. */
static void test_the_finish_reason_comes_with_the_last_token_of_each_choice(void **state)
{
    (void)state;
    static const char body[] = "{\"model\":\"m\",\"prompt\":[\"a\",\"bb\"],\"stream\":true,"
                               "\"max_tokens\":3,\"n\":3,\"return_token_ids\":true}";
    struct strbuf answer = {0};
    for (unsigned splits = 0; splits < 2; splits++) {
        fixture_init(&f);
        f.workers[0].split_ends = splits;
        start(1);
        for (unsigned k = 0; k < 10; k++) {
            assert_int_equal(ask("POST", "/v1/completions", body, &answer), 200);
            assert_int_equal(count(strbuf_str(&answer), "\"finish_reason\":\"length\""), 6);
            assert_int_equal(count(strbuf_str(&answer), "\"token_ids\":[]"), 0);
        }
        fixture_stop(&f);
        forget(NULL);
    }
    strbuf_fini(&answer);
}

/* A client that closes while its request waits, and while tokens come, frees its place at once. */
static void test_a_client_that_leaves_is_cancelled(void **state)
{
    (void)state;
    static const char body[] = STREAM "\"max_tokens\":100000}";
    struct strbuf answer = {0};
    fixture_init(&f);
    f.workers[0].step_us = 5000;
    start(1);
    int fd = send_request("POST", "/v1/completions", body);
    read_until(fd, "data: ", &answer);
    close(fd);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    assert_int_equal(fake_worker_read(&f.workers[0], &f.workers[0].n_cancels), 1);
    fake_worker_hang(&f.workers[0], true, false);
    fd = send_request("POST", "/v1/completions", body);
    assert_true(fake_worker_wait_live(&f.workers[0], 1));
    close(fd);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 2));
    fake_worker_hang(&f.workers[0], false, false);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* A stream without a token for long begins with a comment, which keeps proxies quiet. */
static void test_a_silent_stream_gets_comments(void **state)
{
    (void)state;
    struct strbuf answer = {0};
    fixture_init(&f);
    f.workers[0].hangs = true;
    start(1);
    f.gateway->surfaces.openai.ping_ms = 200;
    int fd = send_request("POST", "/v1/completions", STREAM "\"max_tokens\":3}");
    read_until(fd, ": ping\n\n", &answer);
    assert_int_equal(status_of(&answer), 200);
    assert_null(strstr(strbuf_str(&answer), "data: "));
    fake_worker_hang(&f.workers[0], false, false);
    read_until(fd, NULL, &answer);
    assert_non_null(strstr(strbuf_str(&answer), "data: [DONE]\n\n"));
    close(fd);
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* A stream in a long prefill was cut as a slow reader. The report of the prompt puts no byte, so no
 * client could take one. The comment that comes shows that time passed. */
static void test_a_long_prefill_is_no_slow_reader(void **state)
{
    (void)state;
    struct strbuf answer = {0};
    fixture_init(&f);
    f.workers[0].starts = true;
    f.workers[0].stop_after = 0; /* nothing follows the report */
    f.config.limits.slow_reader_ms = 300;
    start(1);
    f.gateway->surfaces.openai.ping_ms = 2500;
    int fd = send_request("POST", "/v1/completions", STREAM "\"max_tokens\":3}");
    read_until(fd, ": ping\n\n", &answer);
    assert_non_null(strstr(strbuf_str(&answer), ": ping\n\n"));
    fake_worker_stop_after(&f.workers[0], 3);
    read_until(fd, NULL, &answer);
    assert_non_null(strstr(strbuf_str(&answer), "data: [DONE]\n\n"));
    close(fd);
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* --- errors --- */

/* An error before the first text is a status; an error behind it is an event of the stream. */
static void test_errors_have_a_status_until_the_first_text(void **state)
{
    (void)state;
    struct strbuf answer = {0};
    for (unsigned after = 0; after < 2; after++) {
        fixture_init(&f);
        f.workers[0].fail_status = STATUS_RESOURCE_EXHAUSTED;
        f.workers[0].fail_reason = "QUEUE_FULL";
        f.workers[0].fail_after = 5 * after;
        f.workers[0].hold = after ? 0 : 100; /* no text is released before the error */
        start(1);
        unsigned status = ask("POST", "/v1/completions", STREAM "\"max_tokens\":50}", &answer);
        assert_int_equal(status, after ? 200 : 429);
        assert_non_null(strstr(strbuf_str(&answer), "\"code\":\"queue_full\""));
        if (after) {
            assert_non_null(strstr(strbuf_str(&answer), "data: {\"error\":{"));
            assert_int_equal(count(strbuf_str(&answer), "data: [DONE]\n\n"), 1);
        } else {
            assert_non_null(strstr(strbuf_str(&answer), "Retry-After: "));
            assert_non_null(strstr(strbuf_str(&answer), "Retry-After-Ms: "));
            assert_null(strstr(strbuf_str(&answer), "[DONE]"));
        }
        fixture_stop(&f);
        forget(NULL);
    }
    strbuf_fini(&answer);
}

/* A prompt that fails cancels the others. The answer was the cancellation of the first prompt, a
 * 500. The error of the prompt that failed belongs there. */
static void test_a_failed_batch_answers_with_the_error_that_came_first(void **state)
{
    (void)state;
    static const char body[] = "{\"model\":\"m\",\"prompt\":[\"a\",\"bb\"],"
                               "\"max_tokens\":100000}";
    struct strbuf answer = {0};
    fixture_init(&f);
    f.workers[0].fail_status = STATUS_RESOURCE_EXHAUSTED;
    f.workers[0].fail_reason = "QUEUE_FULL";
    f.workers[0].fail_prompt = 2;
    f.workers[0].step_us = 5000;
    start(1);
    assert_int_equal(ask("POST", "/v1/completions", body, &answer), 429);
    assert_non_null(strstr(strbuf_str(&answer), "\"code\":\"queue_full\""));
    strbuf_fini(&answer);
    fixture_stop(&f);
}

static void test_statuses_and_fields_of_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *body;
        unsigned status;
        const char *has;
    } rows[] = {
        {"POST", "/v1/completions", "{\"model\":\"x\",\"prompt\":\"a\"}", 404,
         "\"param\":\"model\",\"code\":\"model_not_found\""},
        {"POST", "/v1/completions", "{\"model\":\"m:9\",\"prompt\":\"a\"}", 404,
         "\"param\":\"model\",\"code\":\"model_not_found\""},
        {"POST", "/v1/completions", "{\"model\":\"m\",\"prompt\":\"a\",\"top_p\":2}", 400,
         "\"param\":\"top_p\""},
        {"POST", "/v1/completions", "{\"model\":\"m\",\"prompt\":[]}", 400, "\"param\":\"prompt\""},
        {"POST", "/v1/completions", "{\"model\":\"m\",\"prompt\":\"a\",\"n\":99}", 400,
         "\"param\":\"n\""},
        {"POST", "/v1/completions", "{\"model\":\"m\",\"prompt\":\"a\",\"n\":0}", 400,
         "\"param\":\"n\""},
        {"POST", "/v1/completions", "{\"model\":\"m\",\"prompt\":\"a\",\"max_tokens\":0}", 400,
         "\"param\":\"max_tokens\""},
        {"POST", "/v1/chat/completions",
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
         "\"logprobs\":true,\"top_logprobs\":999}",
         400, "\"param\":\"top_logprobs\""},
        {"POST", "/v1/chat/completions", "", 400, "\"type\":\"invalid_request_error\""},
        {"GET", "/v1/chat/completions", NULL, 405, "Allow: "},
        {"GET", "/v1/models/nobody", NULL, 404, "\"code\":\"model_not_found\""},
        {"GET", "/v1/models/m%00x", NULL, 404, "\"error\""},
        {"POST", "/tokenize", "{\"model\":\"m\"}", 400, "\"param\":\"prompt\""},
        {"POST", "/tokenize", "{\"model\":\"x\",\"prompt\":\"a\"}", 404, "model_not_found"},
        /* symptom: the last of two values won */
        {"POST", "/tokenize", "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "\"param\":\"prompt\""},
        {"POST", "/tokenize",
         "{\"prompt\":\"a\",\"return_token_strs\":true,\"return_token_strings\":false}", 400,
         "\"param\":\"return_token_strings\""},
        {"POST", "/tokenize", "{\"prompt\":\"a\",\"messages\":[]}", 400, "\"param\":\"messages\""},
        {"POST", "/detokenize", "{\"tokens\":[1],\"tokens\":[2]}", 400, "\"param\":\"tokens\""},
        {"POST", "/detokenize", "{\"model\":\"m\",\"tokens\":[-1]}", 400, "\"param\":\"tokens\""},
        {"POST", "/v1/embeddings", "{\"input\":\"a\"}", 404, "\"code\":\"not_built\""},
        {"POST", "/v1/responses", "{", 404, "\"code\":\"not_built\""},
        {"POST", "/v1/messages", "{}", 404, "\"code\":\"not_built\""},
        {"GET", "/v2/models/m/ready", NULL, 200, ""},
        {"GET", "/v2/models/x/ready", NULL, 404, "\"error\""},
    };
    struct strbuf answer = {0};
    fixture_init(&f);
    start(1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned status = ask(rows[i].method, rows[i].path, rows[i].body, &answer);
        if (status != rows[i].status || !strstr(strbuf_str(&answer), rows[i].has))
            print_error("%s %s: %s\n", rows[i].path, rows[i].body ? rows[i].body : "",
                        strbuf_str(&answer));
        assert_int_equal(status, rows[i].status);
        assert_non_null(strstr(strbuf_str(&answer), rows[i].has));
    }
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* --- whole answers --- */

static void test_a_batch_of_prompts_gives_choices_in_order(void **state)
{
    (void)state;
    static const char body[] = "{\"model\":\"m:1\",\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2,"
                               "\"seed\":1,\"max_tokens\":3,\"return_token_ids\":true}";
    struct strbuf answer = {0};
    fixture_init(&f);
    start(1);
    assert_int_equal(ask("POST", "/v1/completions", body, &answer), 200);
    const char *at = strbuf_str(&answer);
    for (uint32_t i = 0; i < 6; i++) {
        char begin[32], ids[96];
        uint32_t prompt = 'a' + i / 2;
        snprintf(begin, sizeof(begin), "{\"index\":%u,", i);
        snprintf(ids, sizeof(ids), "\"token_ids\":[%u,%u,%u]", fake_token(&prompt, 1, 1, i % 2, 0),
                 fake_token(&prompt, 1, 1, i % 2, 1), fake_token(&prompt, 1, 1, i % 2, 2));
        at = strstr(at, begin);
        if (!at || !strstr(at, ids)) {
            fail_msg("choice %u is missing or wrong: %s", i, strbuf_str(&answer));
            return;
        }
    }
    assert_non_null(strstr(strbuf_str(&answer), "\"model\":\"m:1\""));
    assert_non_null(strstr(strbuf_str(&answer), "\"completion_tokens\":18,"));
    strbuf_fini(&answer);
    fixture_stop(&f);
}

static void test_models_are_listed(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 0},
                                                  {"m", "2", true, 0, 0},
                                                  {"a", "1", true, 0, 0},
                                                  {"idle", "1", false, 0, 0}};
    struct strbuf answer = {0};
    fixture_init(&f);
    start(1);
    fixture_routes(&f, routes, 4);
    fixture_wait_health(&f, "model/a/1", 0);
    assert_int_equal(ask("GET", "/models", NULL, &answer), 200);
    const char *a = strstr(strbuf_str(&answer), "\"id\":\"a\"");
    const char *m = strstr(strbuf_str(&answer), "\"id\":\"m\"");
    const char *m2 = strstr(strbuf_str(&answer), "\"id\":\"m:2\"");
    assert_true(a && m && m2 && a < m && m < m2);
    assert_null(strstr(strbuf_str(&answer), "\"id\":\"a:1\""));
    assert_null(strstr(strbuf_str(&answer), "idle"));
    assert_int_equal(ask("GET", "/v1/models/a:1", NULL, &answer), 200);
    assert_int_equal(ask("GET", "/v1/models/m%3A2", NULL, &answer), 200);
    assert_int_equal(ask("HEAD", "/v1/models", NULL, &answer), 200);
    /* Symptom: an escaped name was unknown to KServe, and known to OpenAI's API. */
    assert_int_equal(ask("GET", "/v2/models/%6d/versions/%32", NULL, &answer), 200);
    assert_non_null(strstr(strbuf_str(&answer), "{\"name\":\"m\",\"versions\":[\"2\"]"));
    assert_int_equal(ask("GET", "/v2/models/m%zz", NULL, &answer), 400);
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* Clients of servers with a single model leave "model" out. The answer was a 400. */
static void test_a_request_without_a_model_takes_the_only_one(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
    static const char chat[] = "{\"model\":\"\",\"max_tokens\":1,"
                               "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    static const struct fixture_route two[] = {{"m", "1", true, 1, 0}, {"a", "1", true, 0, 0}};
    static const char names[] = "the loaded models are \\\"a\\\", \\\"m\\\"";
    struct strbuf answer = {0};
    fixture_init(&f);
    start(1);
    assert_int_equal(ask("POST", "/v1/completions", text, &answer), 200);
    assert_non_null(strstr(strbuf_str(&answer), "\"model\":\"m\""));
    assert_int_equal(ask("POST", "/v1/chat/completions", chat, &answer), 200);
    fixture_routes(&f, two, 2);
    fixture_wait_health(&f, "model/a/1", 0);
    assert_int_equal(ask("POST", "/v1/completions", text, &answer), 400);
    assert_non_null(strstr(strbuf_str(&answer), "\"param\":\"model\""));
    assert_non_null(strstr(strbuf_str(&answer), names));
    assert_int_equal(ask("POST", "/tokenize", "{\"prompt\":\"a\"}", &answer), 400);
    assert_non_null(strstr(strbuf_str(&answer), names));
    assert_int_equal(ask("POST", "/v1/completions", "{\"model\":\"x\",\"prompt\":\"a\"}", &answer),
                     404);
    assert_non_null(strstr(strbuf_str(&answer), names));
    strbuf_fini(&answer);
    fixture_stop(&f);
}

/* An error names at most eight models. */
static void test_an_error_names_few_models(void **state)
{
    (void)state;
    static const struct fixture_route many[] = {{"m0", "1", true, 0, 0}, {"m1", "1", true, 0, 0},
                                                {"m2", "1", true, 0, 0}, {"m3", "1", true, 0, 0},
                                                {"m4", "1", true, 0, 0}, {"m5", "1", true, 0, 0},
                                                {"m6", "1", true, 0, 0}, {"m7", "1", true, 0, 0},
                                                {"m8", "1", true, 0, 0}, {"m9", "1", true, 0, 0}};
    struct strbuf answer = {0};
    fixture_init(&f);
    start(1);
    fixture_routes(&f, many, 10);
    fixture_wait_health(&f, "model/m9/1", 0);
    assert_int_equal(ask("POST", "/v1/completions", "{\"prompt\":\"a\"}", &answer), 400);
    assert_non_null(strstr(strbuf_str(&answer), "m7"));
    assert_null(strstr(strbuf_str(&answer), "m8"));
    strbuf_fini(&answer);
    fixture_stop(&f);
}

static void test_tokenize_asks_a_worker(void **state)
{
    (void)state;
    struct strbuf answer = {0};
    fixture_init(&f);
    start(1);
    assert_int_equal(ask("POST", "/tokenize", "{\"prompt\":\"ab\",\"foo\":1}", &answer), 200);
    assert_non_null(strstr(strbuf_str(&answer), "{\"count\":2,"));
    assert_non_null(strstr(strbuf_str(&answer), "\"tokens\":[97,98],\"token_strs\":null}"));
    assert_non_null(strstr(strbuf_str(&answer), "X-Sluice-Ignored: foo\r\n"));
    /* a client that leaves while the worker thinks */
    fake_worker_stop(&f.workers[0], true);
    int fd = send_request("POST", "/tokenize", "{\"prompt\":\"ab\"}");
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_texts, 2));
    close(fd);
    fake_worker_stop(&f.workers[0], false);
    assert_int_equal(ask("POST", "/tokenize", "{\"prompt\":\"a\"}", &answer), 200);
    strbuf_fini(&answer);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_stream_has_every_token_and_one_end, forget),
        cmocka_unit_test_setup(test_a_lost_worker_leaves_no_trace_in_the_stream, forget),
        cmocka_unit_test_setup(test_the_finish_reason_comes_with_the_last_token_of_each_choice,
                               forget),
        cmocka_unit_test_setup(test_a_client_that_leaves_is_cancelled, forget),
        cmocka_unit_test_setup(test_a_silent_stream_gets_comments, forget),
        cmocka_unit_test_setup(test_a_long_prefill_is_no_slow_reader, forget),
        cmocka_unit_test_setup(test_errors_have_a_status_until_the_first_text, forget),
        cmocka_unit_test_setup(test_a_failed_batch_answers_with_the_error_that_came_first, forget),
        cmocka_unit_test_setup(test_statuses_and_fields_of_refusals, forget),
        cmocka_unit_test_setup(test_a_batch_of_prompts_gives_choices_in_order, forget),
        cmocka_unit_test_setup(test_models_are_listed, forget),
        cmocka_unit_test_setup(test_a_request_without_a_model_takes_the_only_one, forget),
        cmocka_unit_test_setup(test_an_error_names_few_models, forget),
        cmocka_unit_test_setup(test_tokenize_asks_a_worker, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
