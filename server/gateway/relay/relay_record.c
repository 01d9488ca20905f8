/* What the worker said, as the relay keeps it. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/relay/relay_private.h"

ProtobufCMessage *relay_copy(const ProtobufCMessage *message)
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

void relay_choice_fini(struct relay_choice *choice)
{
    free(choice->generated.ids);
    free(choice->text_ends.ids);
    strbuf_fini(&choice->text);
    for (size_t i = 0; i < choice->n_logprobs; i++)
        rpc_message_free(&choice->logprobs[i]->base);
    free(choice->logprobs);
    if (choice->finished)
        rpc_message_free(&choice->finished->base);
}

static bool reserve(struct relay_ids *list, size_t n)
{
    if (list->n + n <= list->capacity)
        return true;
    size_t capacity = list->capacity ? list->capacity * 2 : 64;
    while (capacity < list->n + n)
        capacity *= 2;
    uint32_t *grown = realloc(list->ids, capacity * sizeof(*grown));
    if (!grown)
        return false;
    list->ids = grown;
    list->capacity = capacity;
    return true;
}

static bool append_ids(struct relay_ids *list, const uint32_t *ids, size_t n)
{
    if (!reserve(list, n))
        return false;
    if (n)
        memcpy(list->ids + list->n, ids, n * sizeof(*ids));
    list->n += n;
    return true;
}

static bool append_logprobs(struct relay_choice *choice, Sluice__V1__TokenLogprob **logprobs,
                            size_t n)
{
    if (choice->n_logprobs + n > choice->logprobs_capacity) {
        size_t capacity = (choice->n_logprobs + n) * 2;
        Sluice__V1__TokenLogprob **grown = realloc(choice->logprobs, capacity * sizeof(*grown));
        if (!grown)
            return false;
        choice->logprobs = grown;
        choice->logprobs_capacity = capacity;
    }
    for (size_t i = 0; i < n; i++) {
        ProtobufCMessage *copy = relay_copy(&logprobs[i]->base);
        if (!copy)
            return false;
        choice->logprobs[choice->n_logprobs++] = (Sluice__V1__TokenLogprob *)copy;
    }
    return true;
}

/* Where the text of each id released by the item ends. The last one has what is left, so that ids
 * and text agree whatever a worker says. */
static bool append_text_ends(struct relay_choice *choice, const Sluice__Worker__V1__StepItem *item,
                             size_t n)
{
    if (!reserve(&choice->text_ends, n))
        return false;
    bool known = item->n_released_text_bytes == item->n_released;
    uint64_t end = choice->text_bytes - strlen(item->text);
    for (size_t i = 0; i < n; i++) {
        end += known ? item->released_text_bytes[i] : 0;
        if (i + 1 == n || end > choice->text_bytes)
            end = choice->text_bytes;
        choice->text_ends.ids[choice->text_ends.n++] = (uint32_t)end;
    }
    return true;
}

/* Usage and receipt go out with the choice that is sent last, which need not be the one that
 * ended last. */
static bool take_finished(struct relay *relay, struct relay_choice *choice,
                          const Sluice__V1__Finished *finished)
{
    choice->finished = (Sluice__V1__Finished *)relay_copy(&finished->base);
    if (!choice->finished)
        return false;
    if (choice->finished->usage && !relay->usage) {
        relay->usage = choice->finished->usage;
        choice->finished->usage = NULL;
    }
    if (choice->finished->receipt && !relay->receipt) {
        relay->receipt = choice->finished->receipt;
        choice->finished->receipt = NULL;
    }
    return true;
}

bool relay_record_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item)
{
    struct relay_choice *choice = &relay->choices[item->choice];
    size_t text_bytes = strlen(item->text), n_before = choice->n_logprobs;
    if (item->prompt_info && !relay_record_prompt(relay, item->prompt_info))
        return false;
    if (!append_ids(&choice->generated, item->token_ids, item->n_token_ids) ||
        !append_logprobs(choice, item->logprobs, item->n_logprobs) ||
        !strbuf_add(&choice->text, item->text, text_bytes))
        return false;
    choice->text_bytes += text_bytes;
    if (item->has_logprob_sum) {
        choice->has_logprob_sum = true;
        choice->logprob_sum = item->logprob_sum;
    }
    size_t held = choice->generated.n - choice->n_released;
    size_t n_released = item->n_released < held ? item->n_released : held;
    if (!append_text_ends(choice, item, n_released))
        return false;
    choice->n_released += n_released;
    meter_tokens(&relay->meter, item->choice, n_released);
    if (relay->whole && choice->n_released && !relay->first_token_ns)
        relay->first_token_ns = clock_now_ns();
    relay->pending_bytes += text_bytes + 4 * item->n_token_ids;
    for (size_t i = n_before; i < choice->n_logprobs; i++)
        relay->pending_bytes += protobuf_c_message_get_packed_size(&choice->logprobs[i]->base);
    return !item->finished || choice->finished || take_finished(relay, choice, item->finished);
}

bool relay_all_finished(const struct relay *relay)
{
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (!relay->choices[i].finished)
            return false;
    return true;
}

size_t relay_logprob_bytes(const struct relay_choice *choice, size_t begin, size_t end)
{
    size_t n_bytes = 0;
    for (size_t i = begin - choice->n_held; i < end - choice->n_held && i < choice->n_logprobs; i++)
        n_bytes += protobuf_c_message_get_packed_size(&choice->logprobs[i]->base);
    return n_bytes;
}

void relay_choice_drop(struct relay_choice *choice, size_t n)
{
    if (n <= choice->n_held)
        return;
    size_t n_drop = n - choice->n_held;
    n_drop = n_drop < choice->n_logprobs ? n_drop : choice->n_logprobs;
    for (size_t i = 0; i < n_drop; i++)
        rpc_message_free(&choice->logprobs[i]->base);
    choice->n_logprobs -= n_drop;
    if (choice->n_logprobs)
        memmove(choice->logprobs, choice->logprobs + n_drop,
                choice->n_logprobs * sizeof(*choice->logprobs));
    /* Nothing that was not sent goes with them. */
    uint64_t end = n == choice->n_sent ? choice->text_sent : choice->text_ends.ids[n - 1];
    strbuf_consume(&choice->text, (size_t)(end - choice->text_held));
    choice->text_held = end;
    choice->n_held = n;
}
