/* relay_private.h: what the files of the room share with each other and with dispatch/ending.c. All
 * under the relay's lock. */
#pragma once

#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"

/* record.c. False: memory is exhausted. */
bool relay_record_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item);
bool relay_all_finished(const struct relay *relay);
void relay_choice_fini(struct relay_choice *choice);
/* Forgets text and logprobs of the ids before n. */
void relay_choice_drop(struct relay_choice *choice, size_t n);
/* Under the relay's lock: tokens that the client may have and no message has yet. */
size_t relay_n_unsent(const struct relay *relay);
/* Size of logprobs [begin, end) of the choice's ids. */
size_t relay_logprob_bytes(const struct relay_choice *choice, size_t begin, size_t end);
/* A deep copy (rpc_message_free), or NULL where memory is exhausted. */
ProtobufCMessage *relay_copy(const ProtobufCMessage *message);

/* A prompt_info of the worker: its first, or the next log-probabilities. False:
 * memory is exhausted. */
bool relay_record_prompt(struct relay *relay, const Sluice__V1__PromptInfo *info);
/* As the client sees it, with the log-probabilities that are held. Borrows from the relay. */
Sluice__V1__PromptInfo relay_prompt_info(struct relay *relay);
/* Puts the next one; false where there is none. */
bool relay_put_prompt(struct relay *relay, relay_put_fn *put, void *ctx);

/* relay_client.c: whether this was the sink; if so it is taken off, for the caller to release. */
bool relay_take_off(struct relay *relay, const struct relay_sink *sink,
                    struct relay_sink **out_old);
/* relay.c: as relay_n_released. What is held back until the best are known is sent with a good end
 * only. */
uint64_t relay_count_released(const struct relay *relay);
/* Tokens that were sent, over all choices. */
uint64_t relay_n_sent(const struct relay *relay);
/* Tokens are sent only as far as there is credit, and there is none. */
bool relay_lacks_credit(const struct relay *relay);
/* relay_delivery.c: the choices in the order in which they are sent, once all have ended. */
void relay_rank(struct relay *relay);
/* The outcome is fixed and is an error. A failed request does not wait for a lost client. */
static inline bool relay_has_failed(const struct relay *relay)
{
    return relay->ended && relay->outcome.status != 0;
}
static inline bool relay_holds_back(const struct relay *relay)
{
    return relay->n_answers < relay->n_choices;
}

/* What its request or, with more, an update lets it have. */
void relay_allow_tokens(struct relay *relay, const Sluice__V1__ModelInfo *info);
/* After an item of choice i was recorded. INTERNAL: no honest worker says that;
 * RESOURCE_EXHAUSTED: an answer in one message will be too large. */
int relay_check_bounds(const struct relay *relay, uint32_t i, struct error *err);
/* The packed answer. */
int relay_check_answer(const struct relay *relay, size_t n_bytes, struct error *err);

/* relay.c: fixes the outcome (NULL: well); the first one counts. */
void relay_fix_outcome(struct relay *relay, const struct error *outcome);
/* pause and resume reach the worker in the order they were decided. */
void relay_set_pause(struct relay *relay, enum relay_pause why, bool on);
/* Pauses or goes on as the bytes that wait for the client say. */
void relay_check_pending(struct relay *relay);
