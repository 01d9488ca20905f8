#include "server/gateway/relay/upstream.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/seeded_bug.h"
#include "proto/rpc/client/stream.h"
#include "server/gateway/relay/relay_private.h"

/* Above this backlog no command of a client is sent. */
enum { MAX_BACKLOG_BYTES = 16 << 20, MAX_BACKLOG_MESSAGES = 1 << 16 };

int upstream_lost(struct error *err)
{
    error_set(err, STATUS_UNAVAILABLE, "the replica is not reachable");
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_REPLICA_LOST);
}

/* Fills the tokens that may be released now. With best_of all choices run to their end, without
 * credit. */
static void fill_credit(const struct relay *relay, Sluice__Worker__V1__Submit *submit)
{
    uint64_t n_released = 0;
    if (relay->credit_tokens == UINT64_MAX || relay_holds_back(relay))
        return;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n_released += relay->choices[i].n_released;
    uint64_t left = relay->credit_tokens > n_released ? relay->credit_tokens - n_released : 0;
    submit->has_credit_tokens = true;
    submit->credit_tokens = (uint32_t)left;
}

void relay_fill_submit(struct relay *relay, struct relay_submit *out)
{
    *out = (struct relay_submit){.submit = SLUICE__WORKER__V1__SUBMIT__INIT,
                                 .resume = SLUICE__WORKER__V1__RESUME_STATE__INIT};
    Sluice__Worker__V1__Submit *submit = &out->submit;
    submit->id = relay->seat.id;
    submit->request = (Sluice__V1__GenerateRequest *)(uintptr_t)relay->request;
    submit->version = relay->version;
    submit->seed = relay->seed;
    submit->default_sampling = &relay->default_sampling;
    submit->knows_kinds = true;
    submit->template_time_unix_ns = relay->template_time_ns;
    submit->tenant = relay->caller;
    submit->request_id = relay->request_id;
    submit->traceparent = relay->meter.traceparent;
    fill_credit(relay, submit);
    submit->paused = relay->pauses != 0;
    if (relay->deadline_ns != INT64_MAX) {
        int64_t left = relay->deadline_ns - clock_now_ns();
        submit->has_deadline_remaining_ns = true;
        submit->deadline_remaining_ns = left > 0 ? (uint64_t)left : 1;
    }
    size_t n_caller = strlen(relay->caller) + 1, n_salt = strlen(relay->request->cache_salt);
    memcpy(out->cache_key, relay->caller, n_caller);
    memcpy(out->cache_key + n_caller, relay->request->cache_salt, n_salt);
    submit->cache_key = (ProtobufCBinaryData){.len = n_caller + n_salt, .data = out->cache_key};
    if (!relay->prompt_info)
        return;
    submit->resume = &out->resume;
    out->resume.n_prompt_token_ids = relay->prompt_info->n_prompt_token_ids;
    out->resume.prompt_token_ids = relay->prompt_info->prompt_token_ids;
    out->resume.n_prompt_logprobs = relay->n_prompt_logprobs;
    out->resume.numerics_id = relay->numerics_id;
    out->resume.n_choices = relay->n_choices;
    out->resume.choices = out->choice_list;
    for (uint32_t i = 0; i < relay->n_choices; i++) {
        struct relay_choice *choice = &relay->choices[i];
        out->choices[i] =
            (Sluice__Worker__V1__ResumedChoice)SLUICE__WORKER__V1__RESUMED_CHOICE__INIT;
        out->choices[i].choice = i;
        out->choices[i].generated_ids = choice->generated.ids;
        out->choices[i].n_generated_ids = choice->generated.n;
        out->choices[i].text_bytes_sent = choice->text_bytes;
        out->choices[i].n_released = (uint32_t)choice->n_released;
        if (choice->generated.n && seeded_bug("I3_repeats_a_token")) {
            out->choices[i].n_generated_ids--;
            out->choices[i].n_released -= choice->n_released == choice->generated.n;
        }
        out->choices[i].finished = choice->finished != NULL;
        out->choices[i].has_logprob_sum = choice->has_logprob_sum;
        out->choices[i].logprob_sum = choice->logprob_sum;
        out->choice_list[i] = &out->choices[i];
    }
}

static int behind(struct error *err)
{
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "model: the replica does not keep up with the requests it receives");
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_QUEUE_FULL);
}

int upstream_check_backlog(struct rpc_stream *stream, struct error *err)
{
    return rpc_stream_pending_bytes(stream) > MAX_BACKLOG_BYTES ||
                   rpc_stream_pending_messages(stream) > MAX_BACKLOG_MESSAGES
               ? behind(err)
               : 0;
}

int upstream_submit(struct relay *relay, struct relay_submit *fill, struct error *err)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    int rc = upstream_check_backlog(relay->seat.stream, err);
    if (rc)
        return rc;
    relay_fill_submit(relay, fill);
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &fill->submit;
    rc = rpc_stream_send(relay->seat.stream, &frame.base);
    if (rc == STATUS_RESOURCE_EXHAUSTED)
        return behind(err);
    return rc ? upstream_lost(err) : 0;
}

bool upstream_is_ending(const struct error *refusal)
{
    return refusal->status == STATUS_UNAVAILABLE &&
           (refusal->reason == REASON_DRAINING || refusal->reason == REASON_ENGINE_FAILED);
}

bool upstream_is_queue_refusal(enum reason refusal)
{
    return refusal == REASON_QUEUE_FULL || refusal == REASON_DEADLINE_UNREACHABLE;
}

/* Cancels the stream if the worker takes no more frames: such a worker counts as lost. */
static void send_frame(struct rpc_stream *stream, const Sluice__Worker__V1__ServeRequest *frame)
{
    if (rpc_stream_send(stream, &frame->base) == STATUS_RESOURCE_EXHAUSTED)
        rpc_stream_cancel(stream);
}

void upstream_cancel(struct rpc_stream *stream, uint64_t id)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Cancel cancel = SLUICE__WORKER__V1__CANCEL__INIT;
    cancel.id = id;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL;
    frame.cancel = &cancel;
    send_frame(stream, &frame);
}

void upstream_pause(struct rpc_stream *stream, uint64_t id, bool paused)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Pause pause = SLUICE__WORKER__V1__PAUSE__INIT;
    Sluice__Worker__V1__Resume resume = SLUICE__WORKER__V1__RESUME__INIT;
    if (paused) {
        pause.id = id;
        frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE;
        frame.pause = &pause;
    } else {
        resume.id = id;
        frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_RESUME;
        frame.resume = &resume;
    }
    send_frame(stream, &frame);
}

void upstream_credit(struct rpc_stream *stream, uint64_t id, uint32_t n_tokens)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Credit credit = SLUICE__WORKER__V1__CREDIT__INIT;
    credit.id = id;
    credit.n_tokens = n_tokens;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT;
    frame.credit = &credit;
    send_frame(stream, &frame);
}

void upstream_update(struct rpc_stream *stream, uint64_t id, const Sluice__V1__UpdateFrame *change)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Update update = SLUICE__WORKER__V1__UPDATE__INIT;
    update.id = id;
    update.update = (Sluice__V1__UpdateFrame *)(uintptr_t)change;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_UPDATE;
    frame.update = &update;
    send_frame(stream, &frame);
}
