/* What the worker says of the prompt, on its way to the client: first how the request was
 * understood, then, where asked for, the prompt's log-probabilities in parts as they come. */
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/message/message.h"
#include "server/gateway/relay/relay_private.h"

/* Of prompt log-probabilities in one message; one entry is at most some 20 KiB. */
enum { MAX_PART_BYTES = 256 << 10 };

/* Takes the entries out of `from`. */
static bool append_logprobs(Sluice__V1__PromptInfo *to, Sluice__V1__PromptInfo *from)
{
    size_t n = to->n_prompt_logprobs + from->n_prompt_logprobs;
    Sluice__V1__TokenLogprob **grown = realloc(to->prompt_logprobs, n * sizeof(*grown));
    if (!grown)
        return false;
    memcpy(grown + to->n_prompt_logprobs, from->prompt_logprobs,
           from->n_prompt_logprobs * sizeof(*grown));
    to->prompt_logprobs = grown;
    to->n_prompt_logprobs = n;
    from->n_prompt_logprobs = 0; /* the list itself goes with `from` */
    return true;
}

static size_t entry_bytes(const Sluice__V1__PromptInfo *info, size_t i)
{
    return protobuf_c_message_get_packed_size(&info->prompt_logprobs[i]->base);
}

bool relay_record_prompt(struct relay *relay, const Sluice__V1__PromptInfo *info)
{
    /* A worker that resumes says its first one again; the client has it. */
    uint32_t known = relay->n_prompt_logprobs;
    bool next = info->n_prompt_logprobs && info->first_prompt_logprob == known;
    if (relay->prompt_info && !next)
        return true;
    Sluice__V1__PromptInfo *copy = (Sluice__V1__PromptInfo *)relay_copy(&info->base);
    if (!copy)
        return false;
    relay->n_prompt_logprobs += (uint32_t)copy->n_prompt_logprobs;
    for (size_t i = 0; i < copy->n_prompt_logprobs; i++)
        relay->pending_bytes += entry_bytes(copy, i);
    if (!relay->prompt_info) {
        relay->prompt_info = copy;
        meter_started(&relay->meter, copy->n_prompt_tokens, copy->n_cached_tokens);
        return true;
    }
    bool ok = append_logprobs(relay->prompt_info, copy);
    rpc_message_free(&copy->base);
    return ok;
}

Sluice__V1__PromptInfo relay_prompt_info(struct relay *relay)
{
    Sluice__V1__PromptInfo info = *relay->prompt_info;
    const Sluice__V1__Output *output = relay->request->output;
    info.request_id = relay->request_id;
    info.model = relay->model;
    info.version = relay->version;
    info.seed = relay->seed;
    info.first_prompt_logprob = relay->n_prompt_logprobs - (uint32_t)info.n_prompt_logprobs;
    if (!output || relay->prompt_info_sent ||
        !(output->return_prompt_token_ids || output->prompt_logprobs || output->return_full_text)) {
        info.n_prompt_token_ids = 0;
        info.prompt_token_ids = NULL;
    }
    return info;
}

/* The first n entries are the client's now. */
static void drop_logprobs(struct relay *relay, size_t n)
{
    Sluice__V1__PromptInfo *info = relay->prompt_info;
    for (size_t i = 0; i < n; i++) {
        relay->pending_bytes -= entry_bytes(info, i);
        rpc_message_free(&info->prompt_logprobs[i]->base);
    }
    info->n_prompt_logprobs -= n;
    if (info->n_prompt_logprobs)
        memmove(info->prompt_logprobs, info->prompt_logprobs + n,
                info->n_prompt_logprobs * sizeof(*info->prompt_logprobs));
}

bool relay_put_prompt(struct relay *relay, relay_put_fn *put, void *ctx)
{
    size_t n = 0, n_bytes = 0;
    if (!relay->prompt_info)
        return false;
    if (relay->prompt_info_sent &&
        (!relay->n_prompt_logprobs || !relay->prompt_info->n_prompt_logprobs))
        return false;
    struct relay_frame frame = {.kind = RELAY_FRAME_PROMPT_INFO,
                                .prompt_info = relay_prompt_info(relay)};
    while (n < frame.prompt_info.n_prompt_logprobs && n_bytes < MAX_PART_BYTES)
        n_bytes += entry_bytes(&frame.prompt_info, n++);
    frame.prompt_info.n_prompt_logprobs = n;
    put(ctx, &frame);
    drop_logprobs(relay, n);
    relay->prompt_info_sent = true;
    return true;
}
