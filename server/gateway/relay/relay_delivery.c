/* Frames from a relay to its client: a stream of frames, or the whole answer. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/relay/relay_private.h"

/* Bytes of tokens in one message. */
enum { MAX_PART_BYTES = 1 << 20 };

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

/* --- frames; everything below runs under the relay's lock --- */

/* Adds the fields that only the server knows to the worker's receipt. */
static Sluice__V1__Receipt *complete_receipt(struct relay *relay)
{
    Sluice__V1__Receipt *receipt = relay->receipt;
    if (!receipt)
        return NULL;
    receipt->seed = relay->seed;
    receipt->n_resumes = relay->n_resumes;
    receipt->numerics_changed = relay->numerics_changed;
    receipt->first_token_ns =
        relay->first_token_ns ? (uint64_t)(relay->first_token_ns - relay->meter.arrived_ns) : 0;
    return receipt;
}

/* A choice's text up to `end`, temporarily terminated there. restore_text undoes that. */
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

/* Drops sent ids. Without a window all of them go. With a window they are held up to a limit.
 * Then a quarter is dropped at once, so that not every token moves the rest. */
static void drop_sent_ids(struct relay *relay, struct relay_choice *choice)
{
    size_t limit = relay->shared->limits->max_replay_bytes / 2 / relay->n_answers;
    size_t n = choice->n_held;
    if (!relay->window_ms) {
        relay_choice_drop(choice, choice->n_sent);
        choice->sent_bytes = 0;
    }
    if (!relay->window_ms || choice->sent_bytes <= limit)
        return;
    for (uint64_t from = choice->text_held;
         n < choice->n_sent && choice->sent_bytes > limit / 4 * 3; n++) {
        choice->sent_bytes -=
            (size_t)(choice->text_ends.ids[n] - from) + 4 + relay_logprob_bytes(choice, n, n + 1);
        from = choice->text_ends.ids[n];
    }
    relay_choice_drop(choice, n);
}

static void sent(struct relay *relay, struct relay_choice *choice, size_t n, uint64_t text_end)
{
    size_t n_bytes = (size_t)(text_end - choice->text_sent) + 4 * n +
                     relay_logprob_bytes(choice, choice->n_sent, choice->n_sent + n);
    relay->pending_bytes -= n_bytes;
    choice->sent_bytes += n_bytes;
    choice->n_sent += n;
    choice->text_sent = text_end;
    if (n)
        drop_sent_ids(relay, choice);
}

static void put_tokens(struct relay *relay, uint32_t index, size_t n, relay_put_fn *put, void *ctx)
{
    struct relay_choice *choice = &relay->choices[relay->order[index]];
    struct relay_frame frame = {.kind = RELAY_FRAME_TOKENS, .tokens = SLUICE__V1__TOKENS__INIT};
    size_t skip = choice->n_sent - choice->n_held;
    const struct relay_run *next = relay_choice_next_run(choice, &frame.tokens.kind);
    if (next && n > next->begin_id - choice->n_sent)
        n = next->begin_id - choice->n_sent;
    bool all = choice->n_sent + n == choice->n_released;
    uint64_t end = all || !n ? choice->text_bytes : choice->text_ends.ids[choice->n_sent + n - 1];
    if (next && choice->n_sent + n == next->begin_id)
        end = next->begin_byte;
    struct cut_text cut;
    frame.tokens.choice = index;
    frame.tokens.first_index = (uint32_t)choice->n_sent;
    if (n) /* a worker may send text without ids */
        frame.tokens.ids = choice->generated.ids + choice->n_sent;
    frame.tokens.n_ids = n;
    frame.tokens.text = cut_text(choice, end, &cut);
    frame.text_ends = n ? choice->text_ends.ids + choice->n_sent : NULL;
    frame.text_begin = choice->text_sent;
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

/* Returns how many ids of a choice may be sent now. *out_any: there are ids to send, or text
 * without ids. */
static size_t n_sendable(const struct relay *relay, const struct relay_choice *choice,
                         bool *out_any)
{
    size_t n = choice->n_released - choice->n_sent;
    uint64_t left = UINT64_MAX;
    *out_any = has_tokens(choice);
    if (relay->credit_tokens != UINT64_MAX && n) {
        uint64_t n_sent = relay_n_sent(relay);
        left = relay->credit_tokens > n_sent ? relay->credit_tokens - n_sent : 0;
        *out_any = left > 0;
    }
    return n < left ? n : (size_t)left;
}

/* Returns how many of the next n ids fit into one message. Any number may have been held back. */
static size_t cut_to_message(const struct relay_choice *choice, size_t n)
{
    size_t k = 0, n_bytes = 0, n_others = 0;
    while (k < n && n_bytes < MAX_PART_BYTES) {
        size_t i = choice->n_sent + k++;
        n_others += 4 + (n > 1 ? relay_logprob_bytes(choice, i, i + 1) : 0);
        n_bytes = (size_t)(choice->text_ends.ids[i] - choice->text_sent) + n_others;
    }
    return k;
}

static bool put_some_tokens(struct relay *relay, relay_put_fn *put, void *ctx)
{
    for (uint32_t k = 0; k < relay->n_answers; k++) {
        uint32_t i = (relay->next_choice + k) % relay->n_answers;
        bool any;
        size_t n = n_sendable(relay, &relay->choices[relay->order[i]], &any);
        if (!any)
            continue;
        n = cut_to_message(&relay->choices[relay->order[i]], n);
        put_tokens(relay, i, n, put, ctx);
        relay->next_choice = i + 1;
        return true;
    }
    return false;
}

/* Puts the end of a choice that has ended and is fully sent; false if there is none. Usage and
 * receipt go with the last choice; by then all have ended. */
static bool put_finished(struct relay *relay, relay_put_fn *put, void *ctx, bool *out_last)
{
    struct relay_choice *choice = NULL;
    uint32_t n_left = 0, index = 0;
    for (uint32_t i = 0; i < relay->n_answers; i++) {
        struct relay_choice *c = &relay->choices[relay->order[i]];
        n_left += !c->finished_sent;
        if (!choice && c->finished && !c->finished_sent && !has_tokens(c)) {
            choice = c;
            index = i;
        }
    }
    if (!choice)
        return false;
    struct relay_frame frame = {.kind = RELAY_FRAME_FINISHED, .finished = *choice->finished};
    frame.finished.choice = index;
    frame.last = *out_last = n_left == 1 && relay->ended;
    if (frame.last) {
        frame.finished.usage = relay->usage;
        frame.finished.receipt = complete_receipt(relay);
    }
    choice->finished_sent = true;
    put(ctx, &frame);
    return true;
}

/* Ends a request that waits for a client frame that cannot come. The end may be among the items
 * that are just arriving. A complete answer may lack the credit to be sent. */
static void end_if_stuck(struct relay *relay)
{
    struct error err;
    if (!relay->no_more_frames || relay->more_items || relay->end_sent)
        return;
    if (relay->ended && (relay->outcome.status || !relay_lacks_credit(relay)))
        return;
    if (!relay->ended && relay_holds_back(relay) && !(relay->pauses & RELAY_PAUSE_CLIENT))
        return; /* credit matters only after the ranking */
    if (!relay->ended && (relay->pauses & RELAY_PAUSE_CLIENT))
        error_set(&err, STATUS_FAILED_PRECONDITION,
                  "paused, and the client has half-closed the stream, so no resume can come");
    else if (relay_lacks_credit(relay))
        error_set(&err, STATUS_FAILED_PRECONDITION,
                  "no credit is left after %" PRIu64
                  " tokens, and the client has half-closed the stream, so no credit can come",
                  relay->credit_tokens);
    else
        return;
    error_reason(&err, REASON_STREAM_HALF_CLOSED);
    relay_fix_outcome(relay, &err);
    relay->outcome = err;
    relay->forgotten = true;
}

static enum relay_delivery put_next(struct relay *relay, relay_put_fn *put, void *ctx)
{
    bool well = !relay->ended || relay->outcome.status == STATUS_OK, last = false;
    bool may_end = well && (!relay_holds_back(relay) || relay->ended);
    if (relay_put_prompt(relay, put, ctx))
        return RELAY_PUT;
    if (may_end && put_finished(relay, put, ctx, &last)) /* directly behind the choice's tokens */
        return last ? RELAY_PUT_LAST : RELAY_PUT;
    if ((!relay_holds_back(relay) || may_end) && put_some_tokens(relay, put, ctx))
        return RELAY_PUT;
    end_if_stuck(relay);
    if (!relay->ended || relay->outcome.status == STATUS_OK)
        return RELAY_NOTHING;
    struct relay_frame end = {.kind = RELAY_FRAME_NONE,
                              .last = true,
                              .error = &relay->outcome,
                              .n_tokens_sent = relay_n_sent(relay)};
    put(ctx, &end);
    return RELAY_PUT_LAST;
}

/* --- best_of --- */

/* Sum of the log-probabilities; -HUGE_VAL if unknown or NaN. */
static double likelihood(const struct relay_choice *choice)
{
    double sum = choice->finished->has_cumulative_logprob
                     ? (double)choice->finished->cumulative_logprob
                     : -HUGE_VAL;
    if (choice->has_logprob_sum) /* the same sum in double precision */
        sum = choice->logprob_sum;
    return isnan(sum) ? -HUGE_VAL : sum;
}

/* Sorts by the sum of the log-probabilities of all tokens, the most likely first. Equal sums
 * keep the order of their index. */
void relay_rank(struct relay *relay)
{
    for (uint32_t i = 1; i < relay->n_choices; i++)
        for (uint32_t k = i; k > 0; k--) {
            uint32_t mine = relay->order[k], before = relay->order[k - 1];
            if (likelihood(&relay->choices[mine]) <= likelihood(&relay->choices[before]))
                break;
            relay->order[k] = before;
            relay->order[k - 1] = mine;
        }
    for (uint32_t i = relay->n_answers; i < relay->n_choices; i++) { /* choices that are not sent */
        const struct relay_choice *choice = &relay->choices[relay->order[i]];
        size_t n_bytes = (size_t)choice->text_bytes + 4 * choice->generated.n +
                         relay_logprob_bytes(choice, 0, choice->generated.n);
        assert(relay->pending_bytes >= n_bytes);
        relay->pending_bytes -= n_bytes;
    }
}

/* --- the whole answer --- */

struct whole_answer {
    Sluice__V1__Choice choices[RELAY_MAX_CHOICES];
    Sluice__V1__Choice *list[RELAY_MAX_CHOICES];
    Sluice__V1__Finished finished[RELAY_MAX_CHOICES];
    struct strbuf content[RELAY_MAX_CHOICES], reasoning[RELAY_MAX_CHOICES];
};

/* Copies the text of each kind. The answer is whole: no text was dropped. */
static void split_text(const struct relay_choice *choice, struct strbuf *content,
                       struct strbuf *reasoning)
{
    Sluice__V1__PartKind kind = SLUICE__V1__PART_KIND__PART_KIND_UNSPECIFIED;
    uint64_t begin = 0;
    for (size_t i = 0; i <= choice->n_runs; i++) {
        uint64_t end = i < choice->n_runs ? choice->runs[i].begin_byte : choice->text_bytes;
        bool is_reasoning = kind == SLUICE__V1__PART_KIND__PART_KIND_REASONING;
        strbuf_add(is_reasoning ? reasoning : content, strbuf_str(&choice->text) + begin,
                   (size_t)(end - begin));
        begin = end;
        kind = i < choice->n_runs ? choice->runs[i].kind : kind;
    }
}

/* False if memory is exhausted. */
static bool fill_choice(struct relay *relay, uint32_t i, struct whole_answer *answer)
{
    struct relay_choice *choice = &relay->choices[relay->order[i]];
    Sluice__V1__Choice *out = &answer->choices[i];
    *out = (Sluice__V1__Choice)SLUICE__V1__CHOICE__INIT;
    out->index = i;
    out->text = (char *)(uintptr_t)strbuf_str(&choice->text);
    if (choice->n_runs) {
        split_text(choice, &answer->content[i], &answer->reasoning[i]);
        out->text = (char *)(uintptr_t)strbuf_str(&answer->content[i]);
        out->reasoning_text = (char *)(uintptr_t)strbuf_str(&answer->reasoning[i]);
    }
    out->ids = choice->generated.ids;
    out->n_ids = choice->n_released;
    out->logprobs = choice->logprobs;
    out->n_logprobs =
        choice->n_logprobs < choice->n_released ? choice->n_logprobs : choice->n_released;
    answer->finished[i] = *choice->finished;
    answer->finished[i].choice = i;
    out->finished = &answer->finished[i];
    choice->n_sent = choice->n_released;
    choice->text_sent = choice->text_bytes;
    answer->list[i] = out;
    return !strbuf_failed(&answer->content[i]) && !strbuf_failed(&answer->reasoning[i]);
}

/* Complete: sends nothing until the end, then one message or the error. */
static enum relay_delivery put_whole(struct relay *relay, relay_put_fn *put, void *ctx)
{
    struct relay_frame frame = {.kind = RELAY_FRAME_NONE, .last = true, .error = &relay->outcome};
    Sluice__V1__CompleteResponse response = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    struct whole_answer answer;
    Sluice__V1__PromptInfo info;
    bool ok = true;
    if (!relay->ended)
        return RELAY_NOTHING;
    for (uint32_t i = 0; i < relay->n_answers; i++)
        answer.content[i] = answer.reasoning[i] = (struct strbuf){0};
    if (!relay->outcome.status) {
        if (relay->prompt_info) {
            info = relay_prompt_info(relay);
            response.prompt_info = &info;
        }
        for (uint32_t i = 0; i < relay->n_answers; i++) {
            const struct relay_choice *choice = &relay->choices[relay->order[i]];
            ok = fill_choice(relay, i, &answer) && ok;
            frame.whole_text_ends[i] = choice->n_runs ? NULL : choice->text_ends.ids;
            frame.whole_runs[i] = choice->runs;
            frame.n_whole_runs[i] = choice->n_runs;
        }
        response.choices = answer.list;
        response.n_choices = relay->n_answers;
        response.usage = relay->usage;
        response.receipt = complete_receipt(relay);
        relay->pending_bytes = 0;
        size_t n_bytes = sluice__v1__complete_response__get_packed_size(&response);
        if (!ok) {
            error_set(&relay->outcome, STATUS_RESOURCE_EXHAUSTED, "answer: out of memory");
        } else if (relay_check_answer(relay, n_bytes, &relay->outcome) == 0) {
            frame.kind = RELAY_FRAME_WHOLE;
            frame.whole = &response;
            frame.error = NULL;
        }
    }
    put(ctx, &frame);
    for (uint32_t i = 0; i < relay->n_answers; i++) {
        strbuf_fini(&answer.content[i]);
        strbuf_fini(&answer.reasoning[i]);
    }
    return RELAY_PUT_LAST;
}

/* --- for sinks --- */

size_t relay_n_unsent(const struct relay *relay)
{
    size_t n = 0;
    for (uint32_t i = 0; i < relay->n_answers; i++) {
        const struct relay_choice *choice = &relay->choices[relay->order[i]];
        n += choice->n_released - choice->n_sent;
    }
    return n;
}

/* Under the relay's lock: the message in flight has been taken. */
static void settle(struct relay *relay)
{
    relay->put_ns = 0;
    relay->in_flight_bytes = relay->in_flight_tokens = 0;
}

/* Puts the next frame, or all that are ready. Under the relay's lock. */
static enum relay_delivery put_frames(struct relay *relay, bool all, relay_put_fn *put, void *ctx)
{
    enum relay_delivery result = RELAY_NOTHING, next;
    do {
        next = relay->whole ? put_whole(relay, put, ctx) : put_next(relay, put, ctx);
        result = next == RELAY_NOTHING ? result : next;
    } while (all && next == RELAY_PUT);
    return result;
}

/* True if the worker's step is only recorded in part. The sink hears of its end at once. */
static bool is_in_step(const struct relay *relay)
{
    return relay->more_items && !relay->ended;
}

static enum relay_delivery deliver(struct relay *relay, const struct relay_sink *sink, bool all,
                                   relay_put_fn *put, void *ctx)
{
    enum relay_delivery delivery = RELAY_NOTHING;
    pthread_mutex_lock(&relay->lock);
    if (relay->sink == sink) {
        size_t before = relay->pending_bytes, n_before = relay_n_unsent(relay);
        settle(relay);
        if (!all || !is_in_step(relay))
            delivery = put_frames(relay, all, put, ctx);
        relay->in_flight_bytes = before - relay->pending_bytes;
        relay->in_flight_tokens = n_before - relay_n_unsent(relay);
        if (delivery != RELAY_NOTHING)
            relay->put_ns = awake_clock_ticked_ns(relay->shared->clock);
        relay->end_sent |= delivery == RELAY_PUT_LAST;
        relay_check_pending(relay);
    }
    pthread_mutex_unlock(&relay->lock);
    return delivery;
}

enum relay_delivery relay_deliver(struct relay *relay, const struct relay_sink *sink,
                                  relay_put_fn *put, void *ctx)
{
    return deliver(relay, sink, false, put, ctx);
}

enum relay_delivery relay_deliver_all(struct relay *relay, const struct relay_sink *sink,
                                      relay_put_fn *put, void *ctx)
{
    return deliver(relay, sink, true, put, ctx);
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

void relay_recheck(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    relay_check_pending(relay);
    pthread_mutex_unlock(&relay->lock);
}
