/* What a relay says to its client: frame by frame, or the whole answer. */
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "server/gateway/relay_private.h"

void relay_sink_init(struct relay_sink *sink, const struct relay_sink_ops *ops)
{
    sink->ops = ops;
    atomic_init(&sink->n_refs, 1);
}

void relay_sink_retain(struct relay_sink *sink)
{
    atomic_fetch_add(&sink->n_refs, 1);
}

void relay_sink_release(struct relay_sink *sink)
{
    if (sink && atomic_fetch_sub(&sink->n_refs, 1) == 1)
        sink->ops->destroy(sink);
}

/* --- frames; everything below under the relay's lock --- */

/* The receipt knows what only the server saw. */
static Sluice__V1__Receipt *complete_receipt(struct relay *relay)
{
    Sluice__V1__Receipt *receipt = relay->receipt;
    if (!receipt)
        return NULL;
    receipt->seed = relay->seed;
    receipt->n_resumes = relay->n_resumes;
    receipt->numerics_changed = relay->numerics_changed;
    receipt->first_token_ns =
        relay->first_token_ns ? (uint64_t)(relay->first_token_ns - relay->arrived_ns) : 0;
    return receipt;
}

/* A choice's text up to `end`, terminated there until restore_text. */
struct cut_text {
    char *at, was;
};

static char *cut_text(struct relay_choice *choice, uint64_t end, struct cut_text *cut)
{
    static char empty[1];
    cut->at = NULL;
    if (!choice->text.n_bytes)
        return empty;
    cut->at = choice->text.data + (end - choice->text_held);
    cut->was = *cut->at;
    *cut->at = '\0';
    return choice->text.data + (choice->text_sent - choice->text_held);
}

static void restore_text(const struct cut_text *cut)
{
    if (cut->at)
        *cut->at = cut->was;
}

static bool has_tokens(const struct relay_choice *choice)
{
    return choice->n_released > choice->n_sent || choice->text_bytes > choice->text_sent;
}

/* What was sent need not be held any longer. */
static void sent(struct relay *relay, struct relay_choice *choice, size_t n, uint64_t text_end)
{
    size_t n_bytes = (size_t)(text_end - choice->text_sent) + 4 * n +
                     relay_logprob_bytes(choice, choice->n_sent, choice->n_sent + n);
    relay->pending_bytes -= n_bytes;
    choice->n_sent += n;
    choice->text_sent = text_end;
    if (n)
        relay_choice_drop(choice, choice->n_sent);
}

static void put_tokens(struct relay *relay, uint32_t index, relay_put_fn *put, void *ctx)
{
    struct relay_choice *choice = &relay->choices[index];
    struct relay_frame frame = {.kind = RELAY_FRAME_TOKENS, .tokens = SLUICE__V1__TOKENS__INIT};
    size_t n = choice->n_released - choice->n_sent, skip = choice->n_sent - choice->n_held;
    uint64_t end = choice->text_bytes;
    struct cut_text cut;
    frame.tokens.choice = index;
    frame.tokens.first_index = (uint32_t)choice->n_sent;
    frame.tokens.ids = choice->generated.ids + choice->n_sent;
    frame.tokens.n_ids = n;
    frame.tokens.text = cut_text(choice, end, &cut);
    if (choice->n_logprobs > skip) {
        size_t n_logprobs = choice->n_logprobs - skip;
        frame.tokens.logprobs = choice->logprobs + skip;
        frame.tokens.n_logprobs = n_logprobs < n ? n_logprobs : n;
    }
    put(ctx, &frame);
    restore_text(&cut);
    if (!relay->first_token_ns)
        relay->first_token_ns = clock_now_ns();
    sent(relay, choice, n, end);
}

/* Puts the end of a choice that has ended and is all sent; false where there is none. Usage and
 * receipt go with the last one; by then all have ended. */
static bool put_finished(struct relay *relay, relay_put_fn *put, void *ctx)
{
    struct relay_frame frame = {.kind = RELAY_FRAME_FINISHED};
    struct relay_choice *choice = NULL;
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < relay->n_choices; i++) {
        struct relay_choice *c = &relay->choices[i];
        n_left += !c->finished_sent;
        if (!choice && c->finished && !c->finished_sent && !has_tokens(c))
            choice = c;
    }
    if (!choice)
        return false;
    frame.finished = *choice->finished;
    if (n_left == 1) {
        frame.finished.usage = relay->usage;
        frame.finished.receipt = complete_receipt(relay);
        frame.last = true;
    }
    choice->finished_sent = true;
    put(ctx, &frame);
    return true;
}

static enum relay_delivery put_next(struct relay *relay, relay_put_fn *put, void *ctx)
{
    bool failed = relay->ended && relay->outcome.status != STATUS_OK;
    struct relay_frame end = {.kind = RELAY_FRAME_NONE, .last = true, .error = &relay->outcome};
    if (relay_put_prompt(relay, put, ctx))
        return RELAY_PUT;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (has_tokens(&relay->choices[i])) {
            put_tokens(relay, i, put, ctx);
            return RELAY_PUT;
        }
    if (failed) {
        put(ctx, &end);
        return RELAY_PUT_LAST;
    }
    if (!put_finished(relay, put, ctx))
        return RELAY_NOTHING;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (!relay->choices[i].finished_sent)
            return RELAY_PUT;
    return RELAY_PUT_LAST;
}

/* --- the whole answer --- */

struct whole_answer {
    Sluice__V1__Choice choices[RELAY_MAX_CHOICES];
    Sluice__V1__Choice *list[RELAY_MAX_CHOICES];
};

static void fill_choice(struct relay *relay, uint32_t i, struct whole_answer *answer)
{
    struct relay_choice *choice = &relay->choices[i];
    Sluice__V1__Choice *out = &answer->choices[i];
    *out = (Sluice__V1__Choice)SLUICE__V1__CHOICE__INIT;
    out->index = i;
    out->text = (char *)(uintptr_t)strbuf_str(&choice->text);
    out->ids = choice->generated.ids;
    out->n_ids = choice->n_released;
    out->logprobs = choice->logprobs;
    out->n_logprobs =
        choice->n_logprobs < choice->n_released ? choice->n_logprobs : choice->n_released;
    out->finished = choice->finished;
    choice->n_sent = choice->n_released;
    choice->text_sent = choice->text_bytes;
    answer->list[i] = out;
}

/* Complete: nothing until the end, then one message or the error. */
static enum relay_delivery put_whole(struct relay *relay, relay_put_fn *put, void *ctx)
{
    struct relay_frame frame = {.kind = RELAY_FRAME_NONE, .last = true, .error = &relay->outcome};
    Sluice__V1__CompleteResponse response = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    struct whole_answer answer;
    Sluice__V1__PromptInfo info;
    if (!relay->ended)
        return RELAY_NOTHING;
    if (!relay->outcome.status) {
        if (relay->prompt_info) {
            info = relay_prompt_info(relay);
            response.prompt_info = &info;
        }
        for (uint32_t i = 0; i < relay->n_choices; i++)
            fill_choice(relay, i, &answer);
        response.choices = answer.list;
        response.n_choices = relay->n_choices;
        response.usage = relay->usage;
        response.receipt = complete_receipt(relay);
        relay->pending_bytes = 0;
        frame.kind = RELAY_FRAME_WHOLE;
        frame.whole = &response;
        frame.error = NULL;
    }
    put(ctx, &frame);
    return RELAY_PUT_LAST;
}

/* --- for sinks --- */

/* Under the relay's lock. */
static void settle(struct relay *relay)
{
    relay->put_ns = 0;
    relay->in_flight_bytes = 0;
}

enum relay_delivery relay_deliver(struct relay *relay, const struct relay_sink *sink,
                                  relay_put_fn *put, void *ctx)
{
    enum relay_delivery delivery = RELAY_NOTHING;
    pthread_mutex_lock(&relay->lock);
    if (relay->sink == sink) {
        size_t before = relay->pending_bytes;
        settle(relay);
        delivery = relay->whole ? put_whole(relay, put, ctx) : put_next(relay, put, ctx);
        relay->in_flight_bytes = before - relay->pending_bytes;
        if (delivery != RELAY_NOTHING)
            relay->put_ns = clock_now_ns();
        relay_check_pending(relay);
    }
    pthread_mutex_unlock(&relay->lock);
    return delivery;
}

void relay_taken(struct relay *relay, const struct relay_sink *sink)
{
    pthread_mutex_lock(&relay->lock);
    if (relay->sink == sink) {
        settle(relay);
        relay_check_pending(relay);
    }
    pthread_mutex_unlock(&relay->lock);
}
