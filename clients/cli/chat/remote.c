#include "clients/cli/chat/remote.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text/json_write.h"
#include "clients/cli/http/http_fetch.h"
#include "clients/cli/http/http_target.h"
#include "clients/cli/http/openai_models.h"
#include "clients/cli/shell/answer.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"

/* A server may think about a long prompt for minutes. */
enum { CONNECT_MS = 10000, IDLE_MS = 600000 };

struct remote {
    struct cli *cli;
    struct http_target *target;
    struct openai_model model;
};

/* An answer while its events come. */
struct stream {
    const struct cli *cli;
    struct answer *answer;
    struct openai_reply reply;
    bool has_end; /* [DONE] or a finish reason came */
};

/* --- options --- */

/* Options of run and chat that have no field in OpenAI's API. */
static int check_options(const struct cli *cli, struct error *err)
{
    static const char *const absent[] = {"min-tokens",         "top-k",      "min-p",
                                         "typical-p",          "ignore-eos", "speculate",
                                         "repetition-penalty", "priority",   "template"};
    for (size_t i = 0; i < CLI_N(absent); i++)
        if (cli_given(cli, absent[i])) {
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "--%s: OpenAI's API has no such option; leave out --%s with --url", absent[i],
                      absent[i]);
            return cli_usage(err);
        }
    if (!cli_given(cli, "version"))
        return 0;
    error_set(err, STATUS_INVALID_ARGUMENT,
              "--version: with --url a version is part of the model's name; write MODEL:%s",
              cli->settings.version);
    return cli_usage(err);
}

/* --- life --- */

int remote_open(struct cli *cli, const char *model, struct remote **out_remote, struct error *err)
{
    struct remote *remote = calloc(1, sizeof(*remote));
    if (!remote)
        return error_no_memory(err);
    remote->cli = cli;
    int rc = cli_dial_check_url(cli, "url", err);
    if (!rc)
        rc = check_options(cli, err);
    if (!rc && model && strlen(model) >= sizeof(remote->model.id))
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "the model's name has over %zu bytes",
                       sizeof(remote->model.id) - 1);
    if (!rc)
        rc = cli_dial_http("url", cli->settings.url, &cli->settings.dial, &remote->target, err);
    if (!rc && model)
        snprintf(remote->model.id, sizeof(remote->model.id), "%s", model);
    else if (!rc)
        rc = openai_models_choose(remote->target, &remote->model, err);
    if (rc)
        remote_close(remote);
    else
        *out_remote = remote;
    return rc;
}

void remote_close(struct remote *remote)
{
    if (!remote)
        return;
    http_target_destroy(remote->target);
    free(remote);
}

const char *remote_model(const struct remote *remote)
{
    return remote->model.id;
}

int remote_context_length(struct remote *remote, uint32_t *out_n, struct error *err)
{
    struct openai_model found = remote->model;
    int rc =
        found.n_context ? 0 : openai_models_find(remote->target, remote->model.id, &found, err);
    if (!rc)
        remote->model = found;
    *out_n = found.n_context > UINT32_MAX ? UINT32_MAX : (uint32_t)found.n_context;
    return rc == STATUS_UNAVAILABLE || rc == STATUS_UNAUTHENTICATED ? rc : 0;
}

/* --- the request --- */

static void add_text(struct strbuf *out, const char *name, const char *value)
{
    strbuf_printf(out, "\"%s\":", name);
    json_write_text(out, value, strlen(value));
}

static void add_number(const struct cli *cli, struct strbuf *out, const char *option,
                       const char *name, double value)
{
    if (cli_given(cli, option))
        strbuf_printf(out, ",\"%s\":%.9g", name, value);
}

/* Opens the object, with the fields that both kinds of requests have. */
static void open_body(const struct remote *remote, struct strbuf *out)
{
    const struct cli *cli = remote->cli;
    const struct cli_settings *s = &cli->settings;
    strbuf_add_char(out, '{');
    add_text(out, "model", remote->model.id);
    strbuf_add_str(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    strbuf_printf(out, ",\"max_tokens\":%" PRIu64, s->max_tokens);
    add_number(cli, out, "temperature", "temperature", s->temperature);
    add_number(cli, out, "top-p", "top_p", s->top_p);
    add_number(cli, out, "presence-penalty", "presence_penalty", s->presence_penalty);
    add_number(cli, out, "frequency-penalty", "frequency_penalty", s->frequency_penalty);
    if (cli_given(cli, "seed"))
        strbuf_printf(out, ",\"seed\":%" PRIu64, s->seed);
    if (s->stop[0]) {
        strbuf_add_char(out, ',');
        add_text(out, "stop", s->stop);
    }
}

static void add_messages(const Sluice__V1__Chat *chat, struct strbuf *out)
{
    strbuf_add_str(out, ",\"messages\":[");
    for (size_t i = 0; i < chat->n_messages; i++) {
        strbuf_add_str(out, i ? ",{" : "{");
        add_text(out, "role", chat->messages[i]->role);
        strbuf_add_char(out, ',');
        add_text(out, "content", chat->messages[i]->content);
        strbuf_add_char(out, '}');
    }
    strbuf_add_char(out, ']');
}

/* --- the answer --- */

/* Prints an event on one line. Outside its texts JSON may have line ends, inside it cannot. */
static void print_event(const char *json, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        putchar(json[i] == '\n' || json[i] == '\r' ? ' ' : json[i]);
    putchar('\n');
}

static void take_finish(struct stream *stream)
{
    const char *finish = stream->reply.finish;
    if (!finish[0])
        return;
    stream->has_end = true;
    if (strcmp(finish, "length") == 0)
        stream->answer->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    else if (strcmp(finish, "stop") == 0)
        stream->answer->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS;
}

static int on_event(void *ctx, const char *name, const char *json, size_t n_bytes,
                    struct error *err)
{
    struct stream *stream = ctx;
    struct answer *answer = stream->answer;
    struct openai_reply *reply = &stream->reply;
    (void)name; /* the data shows whether the event is an error; servers use any name */
    if (n_bytes >= 6 && memcmp(json, "[DONE]", 6) == 0) {
        stream->has_end = true;
        return error_set(err, STATUS_CANCELLED, "the stream is complete");
    }
    int rc = openai_reply_read(reply, json, n_bytes, err);
    if (rc)
        return rc;
    if (stream->cli->settings.json)
        print_event(json, n_bytes);
    if (reply->reasoning.n_bytes)
        answer_add_thought(stream->cli, answer, strbuf_str(&reply->reasoning));
    if (reply->text.n_bytes || reply->reasoning.n_bytes)
        answer->n_tokens++; /* the usage corrects the number */
    if (reply->text.n_bytes)
        answer_add_text(stream->cli, answer, strbuf_str(&reply->text));
    take_finish(stream);
    if (reply->has_usage) {
        answer->n_tokens = reply->n_generated;
        answer->n_prompt_tokens = (uint32_t)reply->n_prompt;
    }
    return output_flush("the answer", err);
}

static void stop_fetch(void *fetch)
{
    http_fetch_stop(fetch);
}

/* Takes the content of `body`. */
static int run_request(struct remote *remote, const char *path, struct strbuf *body,
                       struct answer *answer, struct error *err)
{
    const struct http_wire_limits limits = {CONNECT_MS, IDLE_MS, remote->cli->settings.timeout_ms};
    struct stream stream = {.cli = remote->cli, .answer = answer};
    struct http_fetch *fetch = NULL;
    strbuf_add_char(body, '}');
    int rc = strbuf_failed(body) ? error_no_memory(err)
                                 : http_fetch_create(remote->target, &limits, &fetch, err);
    if (rc)
        return rc;
    answer->start_ns = clock_now_ns();
    answer_set_stop(answer, stop_fetch, fetch);
    rc = http_fetch_run(fetch, path, body, on_event, &stream, err);
    answer_set_stop(answer, NULL, NULL);
    http_fetch_destroy(fetch);
    openai_reply_fini(&stream.reply);
    if (rc == STATUS_CANCELLED && stream.has_end)
        rc = 0;
    if (!rc && !stream.has_end)
        rc = error_set(err, STATUS_DATA_LOSS, "the server's stream ended within the answer");
    return answer_finish(remote->cli, answer, rc, err);
}

int remote_chat(struct remote *remote, const Sluice__V1__Chat *chat, struct answer *answer,
                struct error *err)
{
    struct strbuf body;
    int rc = check_options(remote->cli, err);
    if (rc)
        return rc;
    strbuf_init(&body, 0);
    open_body(remote, &body);
    add_messages(chat, &body);
    rc = run_request(remote, "/chat/completions", &body, answer, err);
    strbuf_fini(&body);
    return rc;
}

int remote_complete(struct remote *remote, const char *prompt, struct answer *answer,
                    struct error *err)
{
    struct strbuf body;
    int rc = check_options(remote->cli, err);
    if (rc)
        return rc;
    strbuf_init(&body, 0);
    open_body(remote, &body);
    strbuf_add_char(&body, ',');
    add_text(&body, "prompt", prompt);
    if (remote->cli->settings.suffix[0]) {
        strbuf_add_char(&body, ',');
        add_text(&body, "suffix", remote->cli->settings.suffix);
    }
    rc = run_request(remote, "/completions", &body, answer, err);
    strbuf_fini(&body);
    return rc;
}
