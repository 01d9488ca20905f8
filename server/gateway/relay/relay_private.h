/* relay_private.h: functions that the files of the room share with each other and with
 * dispatch/ending.c. All run under the relay's lock. */
#pragma once

#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"

/* record.c. False if memory is exhausted. */
bool relay_record_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item);
bool relay_all_finished(const struct relay *relay);
void relay_choice_fini(struct relay_choice *choice);
/* The run behind the one that begins at the next byte or id to send, or NULL. *out_kind: the kind
 * of the next byte or id. */
const struct relay_run *relay_choice_next_run(const struct relay_choice *choice,
                                              Sluice__V1__PartKind *out_kind);
/* Drops text and logprobs of the ids before n. */
void relay_choice_drop(struct relay_choice *choice, size_t n);
/* Tokens that are released for the client and in no message yet. */
size_t relay_n_unsent(const struct relay *relay);
/* Size of logprobs [begin, end) of the choice's ids. */
size_t relay_logprob_bytes(const struct relay_choice *choice, size_t begin, size_t end);
/* Returns a deep copy (rpc_message_free), or NULL if memory is exhausted. */
ProtobufCMessage *relay_copy(const ProtobufCMessage *message);

/* Records a prompt_info of the worker: the first, or the next part of the log-probabilities.
 * False if memory is exhausted. */
bool relay_record_prompt(struct relay *relay, const Sluice__V1__PromptInfo *info);
/* Returns the prompt info for the client, with the log-probabilities that are held. Borrows from
 * the relay. */
Sluice__V1__PromptInfo relay_prompt_info(struct relay *relay);
/* Puts the next prompt info; false if there is none. */
bool relay_put_prompt(struct relay *relay, relay_put_fn *put, void *ctx);

/* relay_client.c: detaches the sink if it is the relay's. Returns true then, and the caller
 * releases *out_old. */
bool relay_take_off(struct relay *relay, const struct relay_sink *sink,
                    struct relay_sink **out_old);
/* relay.c: like relay_n_released, under the lock. Choices held back for the ranking are sent
 * only after a good end, so they do not count. */
uint64_t relay_count_released(const struct relay *relay);
/* Tokens sent, over all choices. */
uint64_t relay_n_sent(const struct relay *relay);
/* True if the request needs credit to send tokens, and none is left. */
bool relay_lacks_credit(const struct relay *relay);
/* relay_delivery.c: puts the choices into the order in which they are sent, once all have ended. */
void relay_rank(struct relay *relay);
/* True if the outcome is fixed and is an error. A failed request does not wait for a lost
 * client. */
static inline bool relay_has_failed(const struct relay *relay)
{
    return relay->ended && relay->outcome.status != 0;
}
static inline bool relay_holds_back(const struct relay *relay)
{
    return relay->n_answers < relay->n_choices;
}

/* Raises the token bound to what the request, or a later update, allows. */
void relay_allow_tokens(struct relay *relay, const Sluice__V1__ModelInfo *info);
/* Takes the version's default sampling. `info` may be NULL. */
void relay_take_sampling(struct relay *relay, const Sluice__V1__ModelInfo *info);
/* Checks the bounds after an item of choice i was recorded. INTERNAL: the worker violates its
 * protocol. RESOURCE_EXHAUSTED: an answer in one message would be too large. */
int relay_check_bounds(const struct relay *relay, uint32_t i, struct error *err);
/* Checks the size of the packed answer. */
int relay_check_answer(const struct relay *relay, size_t n_bytes, struct error *err);

/* relay.c: fixes the outcome (NULL: OK). The first outcome counts. */
void relay_fix_outcome(struct relay *relay, const struct error *outcome);
/* Sets or clears a reason to pause. Pause and resume reach the worker in the order of the
 * decisions. */
void relay_set_pause(struct relay *relay, enum relay_pause why, bool on);
/* Pauses or continues the sequence by the bytes that wait for the client. */
void relay_check_pending(struct relay *relay);
