/* Frames to a GenerateStream's client: frames of its requests, and refusals of its own frames. */
#include <stdio.h>
#include <stdlib.h>

#include "proto/rpc/server/call.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/relay/relay.h"

struct stream_refusal *generate_stream_make_refusal(const char *request_id, const struct error *err)
{
    struct stream_refusal *refusal = calloc(1, sizeof(*refusal));
    if (!refusal)
        return NULL;
    snprintf(refusal->request_id, sizeof(refusal->request_id), "%s", request_id);
    refusal->error = *err;
    return refusal;
}

bool generate_stream_queue_refusal(struct generate_stream *stream, struct stream_refusal *refusal)
{
    *stream->refusals_end = refusal;
    stream->refusals_end = &refusal->next;
    bool pause = ++stream->n_refusals >= STREAM_MAX_REFUSALS && !stream->reads_paused;
    stream->reads_paused |= pause;
    return pause;
}

void generate_stream_tell_refusal(struct generate_stream *stream, bool pause)
{
    if (pause) {
        rpc_call_pause_reads(stream->call);
        pthread_mutex_lock(&stream->lock);
        bool paused = stream->reads_paused;
        pthread_mutex_unlock(&stream->lock);
        if (!paused) /* on_taken has sent the refusals meanwhile */
            rpc_call_resume_reads(stream->call);
    }
    rpc_call_kick(stream->call);
}

void generate_stream_refuse(struct generate_stream *stream, const char *request_id,
                            const struct error *err, const struct stream_member *member)
{
    struct stream_refusal *refusal = generate_stream_make_refusal(request_id, err);
    if (!refusal) {
        rpc_call_finish(stream->call, err);
        return;
    }
    pthread_mutex_lock(&stream->lock);
    refusal->goes_on = member && !member->gone;
    bool pause = generate_stream_queue_refusal(stream, refusal);
    pthread_mutex_unlock(&stream->lock);
    generate_stream_tell_refusal(stream, pause);
}

static void put_error(struct rpc_out *out, const char *request_id, const struct error *err,
                      bool goes_on, uint64_t n_tokens_sent)
{
    Sluice__V1__GenerateStreamResponse response = SLUICE__V1__GENERATE_STREAM_RESPONSE__INIT;
    Sluice__V1__Error error = SLUICE__V1__ERROR__INIT;
    error.code = status_to_grpc(err->status);
    error.message = (char *)(uintptr_t)err->message;
    error.field = (char *)(uintptr_t)err->field;
    error.reason = (char *)(uintptr_t)error_reason_name(err);
    error.retry_after_ms = err->retry_after_ms;
    error.n_tokens_sent = n_tokens_sent;
    response.request_id = (char *)(uintptr_t)request_id;
    response.frame_case = SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_ERROR;
    response.error = &error;
    response.goes_on = goes_on;
    rpc_out_put(out, &response.base);
}

bool generate_stream_put_frame(void *answer, const struct relay *relay,
                               const struct relay_frame *frame, struct rpc_out *out)
{
    Sluice__V1__GenerateStreamResponse response = SLUICE__V1__GENERATE_STREAM_RESPONSE__INIT;
    struct relay_frame copy = *frame; /* the message's fields are not const */
    (void)answer;
    response.request_id = (char *)(uintptr_t)relay->request_id;
    switch (frame->kind) {
    case RELAY_FRAME_PROMPT_INFO:
        response.frame_case = SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_PROMPT_INFO;
        response.prompt_info = &copy.prompt_info;
        break;
    case RELAY_FRAME_TOKENS:
        response.frame_case = SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_TOKENS;
        response.tokens = &copy.tokens;
        break;
    case RELAY_FRAME_FINISHED:
        response.frame_case = SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_FINISHED;
        response.finished = &copy.finished;
        break;
    default:
        put_error(out, relay->request_id, frame->error, false, frame->n_tokens_sent);
        return true;
    }
    rpc_out_put(out, &response.base);
    return true;
}

void generate_stream_put_refused(const struct stream_refusal *refusal, struct rpc_out *out)
{
    put_error(out, refusal->request_id, &refusal->error, refusal->goes_on, 0);
}

bool generate_stream_put_refusal(struct generate_stream *stream, struct rpc_out *out)
{
    struct stream_refusal *refusal = stream->refusals;
    if (!refusal)
        return false;
    stream->refusals = refusal->next;
    if (!stream->refusals)
        stream->refusals_end = &stream->refusals;
    stream->n_refusals--;
    stream->form->put_refusal(refusal, out);
    free(refusal);
    return true;
}
