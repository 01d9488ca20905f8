#include "server/gateway/relay_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/rpc_call.h"
#include "server/gateway/relay.h"

ProtobufCMessage *relay_message_copy(const ProtobufCMessage *message)
{
    size_t n_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes)
        return NULL;
    protobuf_c_message_pack(message, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, n_bytes, bytes);
    free(bytes);
    return copy;
}

/* The worker's prompt_info as the client sees it: ids only where asked for. Borrows from the relay.
 */
static Sluice__V1__PromptInfo client_prompt_info(struct relay *relay)
{
    Sluice__V1__PromptInfo info = *relay->prompt_info;
    const Sluice__V1__Output *output = relay->request->output;
    info.request_id = relay->request_id;
    info.model = relay->model;
    info.version = relay->version;
    info.seed = relay->seed;
    if (!output || !output->return_prompt_token_ids) {
        info.n_prompt_token_ids = 0;
        info.prompt_token_ids = NULL;
    }
    return info;
}

/* The receipt knows what only the server saw. */
static void complete_receipt(struct relay *relay, Sluice__V1__Finished *finished)
{
    Sluice__V1__Receipt *receipt = finished->receipt;
    if (!receipt)
        return;
    receipt->seed = relay->seed;
    receipt->n_resumes = relay->n_resumes;
    receipt->numerics_changed = relay->numerics_changed;
    receipt->first_token_ns =
        relay->first_token_ns ? (uint64_t)(relay->first_token_ns - relay->arrived_ns) : 0;
}

static size_t n_logprobs_of(const struct relay_choice *choice, size_t n_ids)
{
    return choice->n_logprobs < n_ids ? choice->n_logprobs : n_ids;
}

/* Returns their size as they were counted when they came. */
static size_t drop_logprobs(struct relay_choice *choice, size_t n)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        n_bytes += protobuf_c_message_get_packed_size(&choice->logprobs[i]->base);
        protobuf_c_message_free_unpacked(&choice->logprobs[i]->base, NULL);
    }
    choice->n_logprobs -= n;
    if (choice->n_logprobs)
        memmove(choice->logprobs, choice->logprobs + n,
                choice->n_logprobs * sizeof(*choice->logprobs));
    return n_bytes;
}

static void put_tokens(struct relay *relay, uint32_t index, struct rpc_out *out)
{
    struct relay_choice *choice = &relay->choices[index];
    Sluice__V1__GenerateResponse response = SLUICE__V1__GENERATE_RESPONSE__INIT;
    Sluice__V1__Tokens tokens = SLUICE__V1__TOKENS__INIT;
    size_t n_ids = choice->n_released - choice->n_sent;
    size_t n_logprobs = n_logprobs_of(choice, n_ids);
    tokens.choice = index;
    tokens.first_index = (uint32_t)choice->n_sent;
    tokens.ids = choice->generated.ids + choice->n_sent;
    tokens.n_ids = n_ids;
    tokens.text = (char *)(uintptr_t)strbuf_str(&choice->pending_text);
    tokens.logprobs = choice->logprobs;
    tokens.n_logprobs = n_logprobs;
    response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS;
    response.tokens = &tokens;
    rpc_out_put(out, &response.base);
    if (!relay->first_token_ns)
        relay->first_token_ns = clock_now_ns();
    relay->pending_bytes -=
        choice->pending_text.n_bytes + 4 * n_ids + drop_logprobs(choice, n_logprobs);
    strbuf_clear(&choice->pending_text);
    choice->n_sent = choice->n_released;
}

static void put_finished(struct relay *relay, struct relay_choice *choice, struct rpc_out *out)
{
    Sluice__V1__GenerateResponse response = SLUICE__V1__GENERATE_RESPONSE__INIT;
    complete_receipt(relay, choice->finished);
    response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_FINISHED;
    response.finished = choice->finished;
    rpc_out_put(out, &response.base);
    choice->finished_sent = true;
}

static bool all_sent(const struct relay *relay)
{
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (!relay->choices[i].finished_sent)
            return false;
    return true;
}

/* The order in which finished choices go out: the one with the receipt last. */
static struct relay_choice *finished_to_send(struct relay *relay)
{
    struct relay_choice *last = NULL;
    for (uint32_t i = 0; i < relay->n_choices; i++) {
        struct relay_choice *choice = &relay->choices[i];
        if (!choice->finished || choice->finished_sent)
            continue;
        if (!choice->finished->receipt)
            return choice;
        last = choice;
    }
    return last;
}

bool relay_put_next(struct relay *relay, struct rpc_out *out)
{
    bool failed = relay->ended && relay->outcome.status != STATUS_OK;
    if (relay->prompt_info && !relay->prompt_info_sent) {
        Sluice__V1__GenerateResponse response = SLUICE__V1__GENERATE_RESPONSE__INIT;
        Sluice__V1__PromptInfo info = client_prompt_info(relay);
        response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_PROMPT_INFO;
        response.prompt_info = &info;
        rpc_out_put(out, &response.base);
        relay->prompt_info_sent = true;
        return true;
    }
    for (uint32_t i = 0; i < relay->n_choices; i++) {
        const struct relay_choice *choice = &relay->choices[i];
        if (choice->n_released > choice->n_sent || choice->pending_text.n_bytes) {
            put_tokens(relay, i, out);
            return true;
        }
    }
    struct relay_choice *finished = failed ? NULL : finished_to_send(relay);
    if (finished)
        put_finished(relay, finished, out);
    bool end = failed || (relay->ended && all_sent(relay));
    if (end)
        rpc_out_finish(out, failed ? &relay->outcome : NULL);
    return finished || end;
}

struct whole_answer {
    Sluice__V1__Choice choices[RELAY_MAX_CHOICES];
    Sluice__V1__Choice *list[RELAY_MAX_CHOICES];
    Sluice__V1__Finished finished[RELAY_MAX_CHOICES];
};

static void fill_choice(struct relay *relay, uint32_t i, struct whole_answer *answer,
                        Sluice__V1__CompleteResponse *response)
{
    struct relay_choice *choice = &relay->choices[i];
    Sluice__V1__Choice *out = &answer->choices[i];
    complete_receipt(relay, choice->finished);
    if (choice->finished->receipt)
        response->receipt = choice->finished->receipt;
    if (choice->finished->usage)
        response->usage = choice->finished->usage;
    answer->finished[i] = *choice->finished;
    answer->finished[i].receipt = NULL;
    answer->finished[i].usage = NULL;
    *out = (Sluice__V1__Choice)SLUICE__V1__CHOICE__INIT;
    out->index = i;
    out->text = (char *)(uintptr_t)strbuf_str(&choice->pending_text);
    out->ids = choice->generated.ids;
    out->n_ids = choice->n_released;
    out->logprobs = choice->logprobs;
    out->n_logprobs = n_logprobs_of(choice, choice->n_released);
    out->finished = &answer->finished[i];
    choice->n_sent = choice->n_released;
    answer->list[i] = out;
}

bool relay_put_whole(struct relay *relay, struct rpc_out *out)
{
    if (!relay->ended)
        return false;
    if (relay->outcome.status) {
        rpc_out_finish(out, &relay->outcome);
        return true;
    }
    Sluice__V1__CompleteResponse response = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    struct whole_answer answer;
    Sluice__V1__PromptInfo info;
    if (relay->prompt_info) {
        info = client_prompt_info(relay);
        response.prompt_info = &info;
    }
    for (uint32_t i = 0; i < relay->n_choices; i++)
        fill_choice(relay, i, &answer, &response);
    response.choices = answer.list;
    response.n_choices = relay->n_choices;
    relay->pending_bytes = 0;
    rpc_out_put(out, &response.base);
    rpc_out_finish(out, NULL);
    return true;
}
