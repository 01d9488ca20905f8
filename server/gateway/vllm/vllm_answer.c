#include "server/gateway/vllm/vllm_answer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/relay/relay_sink.h"
#include "server/gateway/vllm/vllm_request.h"

struct vllm_answer *vllm_answer_create(const struct vllm_request *request, bool streams)
{
    struct vllm_answer *answer = calloc(1, sizeof(*answer));
    if (!answer)
        return NULL;
    arena_init(&answer->arena, 0, 0);
    answer->streams = streams;
    answer->n_top = request->n_top;
    answer->n_prompt_top = request->n_prompt_top;
    return answer;
}

void vllm_answer_destroy(struct vllm_answer *answer)
{
    if (!answer)
        return;
    arena_fini(&answer->arena);
    free(answer);
}

/* --- log-probabilities --- */

/* Makes room for n more. False if memory is exhausted. */
static bool reserve(struct arena *arena, struct vllm_logprobs *list, size_t n)
{
    size_t capacity = list->capacity ? list->capacity : 16;
    while (capacity < list->n + n)
        capacity *= 2;
    if (capacity == list->capacity)
        return true;
    struct vllm_logprobs more = {.values = arena_calloc(arena, capacity, sizeof(*more.values)),
                                 .ids = arena_calloc(arena, capacity, sizeof(*more.ids)),
                                 .tops = arena_calloc(arena, capacity, sizeof(*more.tops)),
                                 .n = list->n,
                                 .capacity = capacity};
    if (!more.values || !more.ids || !more.tops)
        return false;
    for (size_t i = 0; i < list->n; i++) {
        more.values[i] = list->values[i];
        more.ids[i] = list->ids[i];
        more.tops[i] = list->tops[i];
    }
    *list = more;
    return true;
}

static Vllm__Grpc__Engine__TopLogProbs *make_top(struct arena *arena,
                                                 const Sluice__V1__TokenLogprob *token, size_t n)
{
    Vllm__Grpc__Engine__TopLogProbs *top = arena_alloc(arena, sizeof(*top));
    n = n < token->n_top ? n : token->n_top;
    if (!top)
        return NULL;
    vllm__grpc__engine__top_log_probs__init(top);
    top->values = arena_calloc(arena, n + 1, sizeof(*top->values));
    top->token_ids = arena_calloc(arena, n + 1, sizeof(*top->token_ids));
    if (!top->values || !top->token_ids)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        top->values[i] = token->top[i]->logprob;
        top->token_ids[i] = token->top[i]->id;
    }
    top->n_values = top->n_token_ids = n;
    return top;
}

/* False if memory is exhausted. */
static bool add_logprobs(struct arena *arena, struct vllm_logprobs *list,
                         Sluice__V1__TokenLogprob *const *tokens, size_t n, int32_t n_top)
{
    if (n_top < 0 || !n)
        return true;
    if (!reserve(arena, list, n))
        return false;
    for (size_t i = 0; i < n; i++) {
        list->values[list->n] = tokens[i]->logprob;
        list->ids[list->n] = tokens[i]->id;
        list->tops[list->n] = make_top(arena, tokens[i], (size_t)n_top);
        if (!list->tops[list->n++])
            return false;
    }
    return true;
}

static void fill_output(Vllm__Grpc__Engine__OutputLogProbs *out, const struct vllm_logprobs *list,
                        int32_t n_top)
{
    vllm__grpc__engine__output_log_probs__init(out);
    out->token_logprobs = list->values;
    out->token_ids = list->ids;
    out->top_logprobs = list->tops;
    out->n_token_logprobs = out->n_token_ids = list->n;
    out->n_top_logprobs = n_top > 0 ? list->n : 0;
}

/* The log-probabilities of the prompt, for the first response of each choice. The first token has
 * no value. NULL if there is nothing to send, or memory is exhausted. */
static Vllm__Grpc__Engine__InputLogProbs *make_input(struct vllm_answer *answer, uint32_t choice,
                                                     bool *out_failed)
{
    const struct vllm_logprobs *list = &answer->input;
    struct arena *arena = &answer->arena;
    if (!list->n || (answer->sent_input & 1u << choice))
        return NULL;
    answer->sent_input |= 1u << choice;
    Vllm__Grpc__Engine__InputLogProbs *out = arena_alloc(arena, sizeof(*out));
    Vllm__Grpc__Engine__InputTokenLogProb *rows = arena_calloc(arena, list->n, sizeof(*rows));
    Vllm__Grpc__Engine__InputTokenLogProb **places = arena_calloc(arena, list->n, sizeof(*places));
    if (!out || !rows || !places) {
        *out_failed = true;
        return NULL;
    }
    vllm__grpc__engine__input_log_probs__init(out);
    for (size_t i = 0; i < list->n; i++) {
        vllm__grpc__engine__input_token_log_prob__init(&rows[i]);
        rows[i].has_value = !isnan(list->values[i]);
        rows[i].value = list->values[i];
        places[i] = &rows[i];
    }
    out->token_logprobs = places;
    out->token_ids = list->ids;
    out->top_logprobs = list->tops;
    out->n_token_logprobs = out->n_token_ids = list->n;
    out->n_top_logprobs = answer->n_prompt_top > 0 ? list->n : 0;
    return out;
}

/* --- responses --- */

/* Ends the call where memory is exhausted. */
static bool fail(struct rpc_out *out)
{
    struct error err;
    error_no_memory(&err);
    rpc_out_finish(out, &err);
    return true;
}

static bool put_chunk(struct vllm_answer *answer, const Sluice__V1__Tokens *tokens,
                      struct rpc_out *out)
{
    Vllm__Grpc__Engine__GenerateResponse response = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    Vllm__Grpc__Engine__GenerateStreamChunk chunk = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
    Vllm__Grpc__Engine__OutputLogProbs output;
    struct vllm_logprobs list = {.n = 0};
    struct arena arena;
    bool failed = false;
    arena_init(&arena, 0, 0);
    failed = !add_logprobs(&arena, &list, tokens->logprobs, tokens->n_logprobs, answer->n_top);
    chunk.token_ids = tokens->ids;
    chunk.n_token_ids = tokens->n_ids;
    chunk.completion_tokens = (uint32_t)tokens->n_ids;
    chunk.prompt_tokens = answer->n_prompt_tokens;
    chunk.cached_tokens = answer->n_cached_tokens;
    chunk.index = tokens->choice;
    if (answer->n_top >= 0) {
        fill_output(&output, &list, answer->n_top);
        chunk.output_logprobs = &output;
    }
    chunk.input_logprobs = make_input(answer, tokens->choice, &failed);
    response.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
    response.chunk = &chunk;
    if (failed)
        fail(out);
    else
        rpc_out_put(out, &response.base);
    arena_fini(&arena);
    return true;
}

static void fill_matched(Vllm__Grpc__Engine__GenerateComplete *complete,
                         const Sluice__V1__Finished *finished)
{
    if (finished->matched_case == SLUICE__V1__FINISHED__MATCHED_STOP) {
        complete->matched_stop_case =
            VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        complete->matched_stop_str = finished->stop;
    } else if (finished->matched_case == SLUICE__V1__FINISHED__MATCHED_STOP_TOKEN_ID) {
        complete->matched_stop_case =
            VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        complete->matched_token_id = finished->stop_token_id;
    }
}

static bool put_complete(struct vllm_answer *answer, const struct relay *relay,
                         const Sluice__V1__Finished *finished, struct rpc_out *out)
{
    static char stop[] = "stop", length[] = "length";
    Vllm__Grpc__Engine__GenerateResponse response = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    Vllm__Grpc__Engine__GenerateComplete complete = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
    Vllm__Grpc__Engine__OutputLogProbs output;
    const struct relay_choice *choice = &relay->choices[relay->order[finished->choice]];
    bool failed = false;
    bool is_length = finished->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH ||
                     finished->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH;
    complete.output_ids = choice->generated.ids;
    complete.n_output_ids = choice->n_released;
    complete.completion_tokens = (uint32_t)choice->n_released;
    complete.finish_reason = is_length ? length : stop;
    complete.prompt_tokens = answer->n_prompt_tokens;
    complete.cached_tokens = answer->n_cached_tokens;
    complete.index = finished->choice;
    fill_matched(&complete, finished);
    if (finished->receipt) {
        complete.spec_accepted_tokens = finished->receipt->n_accepted_tokens;
        complete.spec_draft_tokens = finished->receipt->n_drafted_tokens;
    }
    if (!answer->streams && answer->n_top >= 0) {
        fill_output(&output, &answer->outputs[finished->choice], answer->n_top);
        complete.output_logprobs = &output;
    }
    complete.input_logprobs = make_input(answer, finished->choice, &failed);
    response.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    response.complete = &complete;
    if (failed)
        return fail(out);
    rpc_out_put(out, &response.base);
    return true;
}

static bool put(void *state, const struct relay *relay, const struct relay_frame *frame,
                struct rpc_out *out)
{
    struct vllm_answer *answer = state;
    if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        const Sluice__V1__PromptInfo *info = &frame->prompt_info;
        answer->n_prompt_tokens = info->n_prompt_tokens;
        answer->n_cached_tokens = info->n_cached_tokens;
        return !add_logprobs(&answer->arena, &answer->input, info->prompt_logprobs,
                             info->n_prompt_logprobs, answer->n_prompt_top) &&
               fail(out);
    }
    if (frame->kind == RELAY_FRAME_TOKENS && answer->streams)
        return put_chunk(answer, &frame->tokens, out);
    if (frame->kind == RELAY_FRAME_TOKENS)
        return !add_logprobs(&answer->arena, &answer->outputs[frame->tokens.choice],
                             frame->tokens.logprobs, frame->tokens.n_logprobs, answer->n_top) &&
               fail(out);
    if (frame->kind == RELAY_FRAME_FINISHED)
        return put_complete(answer, relay, &frame->finished, out);
    return false;
}

static void name_field(const void *state, struct error *err)
{
    (void)state;
    vllm_request_name_field(err);
}

static void destroy(void *state)
{
    vllm_answer_destroy(state);
}

const struct call_form vllm_answer_form = {
    .put = put, .name_field = name_field, .destroy = destroy};
