#include "clients/cli/shell/answer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"

/* The rate of fewer tokens is noise: one step may carry all of them. */
enum { MIN_RATE_TOKENS = 10 };

void answer_init(struct answer *answer)
{
    memset(answer, 0, sizeof(*answer));
    pthread_mutex_init(&answer->lock, NULL);
}

void answer_fini(struct answer *answer)
{
    strbuf_fini(&answer->text);
    pthread_mutex_destroy(&answer->lock);
}

static void note_time(struct answer *a)
{
    a->last_ns = clock_now_ns();
    if (!a->first_ns)
        a->first_ns = a->last_ns;
}

/* SGR 2 of ECMA-48 is faint, SGR 0 is normal. */
static void set_faint(bool on)
{
    if (isatty(STDERR_FILENO))
        fputs(on ? "\x1B[2m" : "\x1B[0m", stderr);
}

void answer_add_thought(const struct cli *cli, struct answer *a, const char *text)
{
    note_time(a);
    if (cli->settings.json || !text[0])
        return;
    if (!a->thinks)
        set_faint(true);
    a->thinks = true;
    printable_write(stderr, text);
}

static void end_thought(struct answer *a)
{
    if (!a->thinks)
        return;
    a->thinks = false;
    set_faint(false);
    fputc('\n', stderr);
}

void answer_add_text(const struct cli *cli, struct answer *a, const char *text)
{
    note_time(a);
    if (text[0])
        end_thought(a);
    strbuf_add_str(&a->text, text);
    if (!cli->settings.json)
        printable_write(stdout, text);
}

static void print_tokens(const struct cli *cli, const Sluice__V1__Tokens *tokens, struct answer *a)
{
    a->n_tokens += tokens->n_ids;
    if (tokens->kind == SLUICE__V1__PART_KIND__PART_KIND_REASONING)
        answer_add_thought(cli, a, tokens->text);
    else
        answer_add_text(cli, a, tokens->text);
}

static void record_end(const Sluice__V1__Finished *finished, struct answer *a)
{
    a->reason = finished->reason;
    if (!finished->receipt)
        return;
    a->n_drafted_tokens = finished->receipt->n_drafted_tokens;
    a->n_accepted_tokens = finished->receipt->n_accepted_tokens;
    a->decode_ns = finished->receipt->decode_ns;
    a->n_resumes = finished->receipt->n_resumes;
    snprintf(a->replica_id, sizeof(a->replica_id), "%s", finished->receipt->replica_id);
}

static int on_event(const struct cli *cli, const Sluice__V1__GenerateResponse *response,
                    struct answer *a, struct error *err)
{
    if (cli->settings.json)
        output_json(&response->base);
    if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS)
        print_tokens(cli, response->tokens, a);
    else if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_PROMPT_INFO)
        a->n_prompt_tokens = response->prompt_info->n_prompt_tokens;
    else if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_FINISHED)
        record_end(response->finished, a);
    return output_flush("the answer", err);
}

void answer_set_stop(struct answer *a, void (*stop)(void *arg), void *arg)
{
    pthread_mutex_lock(&a->lock);
    a->stop = stop;
    a->stop_arg = arg;
    a->ended = !stop;
    if (stop && a->cancelled) /* cancelled before the call existed */
        stop(arg);
    pthread_mutex_unlock(&a->lock);
}

void answer_cancel(struct answer *a)
{
    pthread_mutex_lock(&a->lock);
    a->cancelled |= !a->ended;
    if (a->stop)
        a->stop(a->stop_arg);
    pthread_mutex_unlock(&a->lock);
}

int answer_finish(const struct cli *cli, struct answer *a, int rc, struct error *err)
{
    end_thought(a);
    if (a->cancelled && rc == STATUS_CANCELLED)
        rc = 0;
    if (!cli->settings.json && (a->n_tokens || !rc))
        putchar('\n');
    if (!rc)
        return output_flush("the answer", err);
    fflush(stdout); /* ends the answer's line before anything goes to stderr */
    return rc;
}

static void cancel_reader(void *reader)
{
    rpc_reader_cancel(reader);
}

int answer_run(struct cli *cli, struct rpc_client *client,
               const Sluice__V1__GenerateRequest *request, struct answer *a, struct error *err)
{
    struct rpc_reader *reader;
    struct rpc_call_options options = {.timeout_ms = cli->settings.timeout_ms};
    ProtobufCMessage *message = NULL;
    a->start_ns = clock_now_ns();
    int rc = rpc_reader_open(client, &sluice__v1__inference__descriptor, "Generate", &request->base,
                             &options, &reader, err);
    if (rc)
        return rc;
    answer_set_stop(a, cancel_reader, reader);
    while (rc == 0 && (rc = rpc_reader_next(reader, &message, err)) == 0 && message) {
        rc = on_event(cli, (const Sluice__V1__GenerateResponse *)message, a, err);
        rpc_message_free(message);
    }
    answer_set_stop(a, NULL, NULL);
    rpc_reader_close(reader); /* cancels a call that has not ended */
    return answer_finish(cli, a, rc, err);
}

void answer_print_figures(const struct answer *a)
{
    char ttft[32];
    double ttft_ms = a->first_ns ? (double)(a->first_ns - a->start_ns) / 1e6 : 0;
    /* Use the engine's decode time if one replica made the whole answer. Arrival times are coarse,
     * because several tokens can arrive at once. */
    bool whole = a->decode_ns && !a->n_resumes;
    double decode_s = (double)(whole ? (int64_t)a->decode_ns : a->last_ns - a->first_ns) / 1e9;
    fprintf(stderr, "%" PRIu64 " tokens, first after %s", a->n_tokens,
            format_latency(ttft_ms, ttft));
    if (a->n_tokens >= MIN_RATE_TOKENS && decode_s > 0)
        fprintf(stderr, ", then %.1f tokens/s", (double)(a->n_tokens - 1) / decode_s);
    if (a->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH)
        fputs("; stopped by --max-tokens", stderr);
    else if (a->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH)
        fputs("; stopped: the context is full", stderr);
    fputc('\n', stderr);
    if (a->n_resumes)
        fprintf(stderr,
                "resumed %" PRIu32
                " time%s after a replica was lost or drained; replica %s finished the answer\n",
                a->n_resumes, a->n_resumes == 1 ? "" : "s", a->replica_id);
    if (a->n_drafted_tokens)
        fprintf(stderr, "%" PRIu32 " of %" PRIu32 " drafted tokens accepted%s\n",
                a->n_accepted_tokens, a->n_drafted_tokens, a->n_resumes ? " after the resume" : "");
}
