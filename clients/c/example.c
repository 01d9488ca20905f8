/* example.c: libsluice in use. Modes: one answer, many answers on one stream, a lost stream with
 * reattach, cancel, deadline, a refused request. */
/* usage: sluice-c-example TARGET MODEL generate|many|lost|cancel|deadline|bad PROMPT [N].
 * Variables, as for the CLI: SLUICE_TLS_CA, SLUICE_TLS_CLIENT_CERT, SLUICE_TLS_CLIENT_KEY,
 * SLUICE_API_KEY. SLUICE_EXAMPLE_IDS=1 prints token ids instead of text. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/c/sluice.h"

enum { MAX_REQUESTS = 64, CREDIT = 4 };

struct example {
    struct sluice_client *client;
    const char *model, *prompt;
    unsigned n; /* tokens, requests or milliseconds */
};

static int tell(const struct sluice_error *err)
{
    printf("%s%s%s%s%s\n", sluice_code_name(err->code), err->field[0] ? " " : "", err->field,
           err->reason[0] ? " " : "", err->reason);
    fprintf(stderr, "%s\n", err->message);
    return err->code;
}

static void fill(const struct example *e, Sluice__V1__Stopping *stopping,
                 Sluice__V1__GenerateRequest *request)
{
    sluice__v1__stopping__init(stopping);
    sluice__v1__generate_request__init(request);
    stopping->has_max_tokens = true;
    stopping->max_tokens = e->n;
    request->model = (char *)(uintptr_t)e->model;
    request->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request->text = (char *)(uintptr_t)e->prompt;
    request->stopping = stopping;
}

static void print_tokens(const Sluice__V1__Tokens *tokens)
{
    if (!getenv("SLUICE_EXAMPLE_IDS"))
        fputs(tokens->text, stdout);
    else
        for (size_t i = 0; i < tokens->n_ids; i++)
            printf("%" PRIu32 " ", tokens->ids[i]);
    fflush(stdout);
}

/* Prints the answer. Cancels the answer after `cancel_after` tokens (0: never). */
static int generate(const struct example *e, unsigned cancel_after, uint64_t timeout_ms)
{
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Stopping stopping;
    const Sluice__V1__GenerateResponse *response = NULL;
    struct sluice_answer *answer;
    struct sluice_error err;
    size_t n_tokens = 0;
    fill(e, &stopping, &request);
    stopping.has_ignore_eos = true; /* the answer must not end before it is cut */
    stopping.ignore_eos = cancel_after || timeout_ms;
    if (sluice_generate(e->client, &request, timeout_ms, &answer, &err) != 0)
        return tell(&err);
    int code;
    while ((code = sluice_next(answer, &response, &err)) == 0 && response) {
        if (response->event_case != SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS)
            continue;
        print_tokens(response->tokens);
        n_tokens += response->tokens->n_ids;
        if (cancel_after && n_tokens >= cancel_after)
            sluice_cancel(answer);
    }
    putchar('\n');
    if (code)
        tell(&err);
    sluice_answer_close(answer);
    return code;
}

/* --- many on one stream --- */

struct many {
    struct sluice_stream *stream;
    char ids[MAX_REQUESTS][16];
    char lines[MAX_REQUESTS][16384];
    bool ended[MAX_REQUESTS];
    unsigned n_requests, n_ended;
};

static unsigned index_of(const struct many *m, const char *request_id)
{
    unsigned i = 0;
    while (i < m->n_requests && strcmp(m->ids[i], request_id) != 0)
        i++;
    return i;
}

/* Handles tokens of a request. The first request gets CREDIT tokens at a time; while it waits for
 * credit, an update raises max_tokens to 24. The last request is cancelled. */
static void on_tokens(struct many *m, unsigned i, const Sluice__V1__Tokens *tokens)
{
    Sluice__V1__UpdateFrame update = SLUICE__V1__UPDATE_FRAME__INIT;
    update.has_max_tokens = true;
    update.max_tokens = 24;
    for (size_t k = 0; k < tokens->n_ids; k++) {
        size_t n = strlen(m->lines[i]);
        snprintf(m->lines[i] + n, sizeof(m->lines[i]) - n, " %" PRIu32, tokens->ids[k]);
    }
    if (i == 0)
        sluice_stream_update(m->stream, m->ids[i], &update, NULL);
    if (i == 0)
        sluice_stream_credit(m->stream, m->ids[i], (uint32_t)tokens->n_ids, NULL);
    else if (i + 1 == m->n_requests)
        sluice_stream_cancel(m->stream, m->ids[i], NULL);
}

static void on_frame(struct many *m, const Sluice__V1__GenerateStreamResponse *frame)
{
    unsigned i = index_of(m, frame->request_id);
    if (i == m->n_requests || m->ended[i])
        return; /* credit sent after the end of a request gets NOT_FOUND */
    const char *outcome = NULL;
    if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_TOKENS)
        on_tokens(m, i, frame->tokens);
    else if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_FINISHED)
        outcome = "ok";
    else if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_ERROR &&
             !frame->goes_on)
        outcome = sluice_code_name(frame->error->code);
    if (!outcome)
        return;
    printf("%s %s%s\n", m->ids[i], outcome, m->lines[i]);
    m->ended[i] = true;
    m->n_ended++;
}

static int start(const struct example *e, struct many *m, unsigned i, struct sluice_error *err)
{
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Stopping stopping;
    char prompt[4096];
    snprintf(m->ids[i], sizeof(m->ids[i]), "r%u", i);
    snprintf(prompt, sizeof(prompt), "%s %u", e->prompt, i);
    fill(e, &stopping, &request);
    stopping.max_tokens = i == 0 ? 2 * CREDIT : i + 1 == m->n_requests ? 512 : 24;
    request.request_id = m->ids[i];
    request.text = prompt;
    request.has_credit_tokens = i == 0;
    request.credit_tokens = CREDIT;
    return sluice_stream_start(m->stream, &request, err);
}

static int many(const struct example *e)
{
    struct many *m = calloc(1, sizeof(*m));
    const Sluice__V1__GenerateStreamResponse *frame = NULL;
    struct sluice_error err = {0};
    int code = m ? sluice_stream_open(e->client, &m->stream, &err) : 8;
    if (!code)
        m->n_requests = e->n < MAX_REQUESTS ? e->n : MAX_REQUESTS;
    for (unsigned i = 0; !code && i < m->n_requests; i++)
        code = start(e, m, i, &err);
    while (!code && m->n_ended < m->n_requests &&
           (code = sluice_stream_next(m->stream, &frame, &err)) == 0 && frame)
        on_frame(m, frame);
    if (!code) {
        sluice_stream_finish(m->stream);
        while ((code = sluice_stream_next(m->stream, &frame, &err)) == 0 && frame)
            ;
    }
    if (code)
        tell(&err);
    if (m)
        sluice_stream_close(m->stream);
    free(m);
    return code;
}

/* --- a lost stream --- */

/* Prints token ids until the end, or until n_enough ids have come (0: until the end). */
static int take(struct sluice_stream *stream, uint32_t n_enough, uint32_t *n_ids,
                struct sluice_error *err)
{
    const Sluice__V1__GenerateStreamResponse *frame = NULL;
    int code = 0;
    while ((!n_enough || *n_ids < n_enough) &&
           (code = sluice_stream_next(stream, &frame, err)) == 0 && frame) {
        if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_FINISHED)
            return 0;
        if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_ERROR) {
            snprintf(err->message, sizeof(err->message), "%s", frame->error->message);
            return err->code = frame->error->code;
        }
        if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_TOKENS) {
            print_tokens(frame->tokens);
            *n_ids += (uint32_t)frame->tokens->n_ids;
        }
    }
    return code;
}

/* Closes the first stream after three tokens; the second stream gets the rest. */
static int lost(const struct example *e)
{
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Stopping stopping;
    Sluice__V1__ReceivedTokens received = SLUICE__V1__RECEIVED_TOKENS__INIT, *choices = &received;
    Sluice__V1__ReattachFrame reattach = SLUICE__V1__REATTACH_FRAME__INIT;
    struct sluice_stream *stream = NULL, *again = NULL;
    struct sluice_error err = {0};
    fill(e, &stopping, &request);
    request.request_id = (char *)(uintptr_t) "lost";
    request.reattach_window_ms = 10000;
    reattach.n_received = 1;
    reattach.received = &choices;
    int code = sluice_stream_open(e->client, &stream, &err);
    if (!code)
        code = sluice_stream_start(stream, &request, &err);
    if (!code)
        code = take(stream, 3, &received.n_tokens, &err);
    sluice_stream_close(stream);
    if (!code)
        code = sluice_stream_open(e->client, &again, &err);
    if (!code)
        code = sluice_stream_reattach(again, request.request_id, &reattach, &err);
    if (!code)
        code = take(again, 0, &received.n_tokens, &err);
    sluice_stream_close(again);
    putchar('\n');
    return code ? tell(&err) : 0;
}

static int bad(const struct example *e)
{
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    ProtobufCMessage *response = NULL;
    struct sluice_error err;
    fill(e, &stopping, &request);
    sampling.has_temperature = true;
    sampling.temperature = -1;
    request.sampling = &sampling;
    int code = sluice_call(e->client, "Complete", &request.base, 0, &response, &err);
    sluice_free(response);
    return code ? tell(&err) : 0;
}

static int run(const struct example *e, const char *mode)
{
    if (strcmp(mode, "generate") == 0)
        return generate(e, 0, 0);
    if (strcmp(mode, "many") == 0)
        return many(e);
    if (strcmp(mode, "lost") == 0)
        return lost(e);
    if (strcmp(mode, "cancel") == 0)
        return generate(e, 3, 0);
    if (strcmp(mode, "deadline") == 0) {
        struct example all = *e;
        all.n = 1500;
        return generate(&all, 0, e->n);
    }
    if (strcmp(mode, "bad") == 0)
        return bad(e);
    fprintf(stderr, "%s: no such mode; use generate, many, lost, cancel, deadline or bad\n", mode);
    return 2;
}

int main(int argc, char *argv[])
{
    if (argc < 5) {
        fputs("usage: sluice-c-example TARGET MODEL generate|many|lost|cancel|deadline|bad PROMPT "
              "[N]\n",
              stderr);
        return 2;
    }
    struct sluice_options options = {
        .target = argv[1],
        .tls_ca = getenv("SLUICE_TLS_CA"),
        .tls_client_cert = getenv("SLUICE_TLS_CLIENT_CERT"),
        .tls_client_key = getenv("SLUICE_TLS_CLIENT_KEY"),
        .api_key = getenv("SLUICE_API_KEY"),
    };
    struct sluice_error err;
    struct example e = {.model = argv[2], .prompt = argv[4], .n = 32};
    if (argc > 5) {
        char *end;
        unsigned long n = strtoul(argv[5], &end, 10);
        if (*end != '\0' || n < 1 || n > UINT32_MAX) {
            fputs("N: give a whole number from 1\n", stderr);
            return 2;
        }
        e.n = (unsigned)n;
    }
    if (sluice_open(&options, &e.client, &err) != 0)
        return tell(&err);
    int code = run(&e, argv[3]);
    sluice_close(e.client);
    return code;
}
