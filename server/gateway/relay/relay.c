#include "server/gateway/relay/relay.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/relay/relay_private.h"
#include "server/gateway/relay/upstream.h"

_Static_assert(CALLER_BYTES == RPC_MAX_TENANT + 1, "a caller must hold any tenant");
_Static_assert((int)METER_MAX_CHOICES == (int)RELAY_MAX_CHOICES,
               "the meter must hold every choice");

/* Choices that the client receives. */
static uint32_t n_answers_of(const Sluice__V1__GenerateRequest *r)
{
    return r->sampling && r->sampling->has_n ? r->sampling->n : 1;
}

/* Choices that the worker generates, 1..8: best_of, else n. */
static uint32_t n_choices_of(const Sluice__V1__GenerateRequest *r)
{
    return r->sampling && r->sampling->has_best_of ? r->sampling->best_of : n_answers_of(r);
}

int relay_create(struct relay_shared *shared, const struct relay_params *params,
                 struct relay **out_relay, struct error *err)
{
    struct relay *relay = calloc(1, sizeof(*relay));
    ProtobufCMessage *request = relay ? relay_copy(&params->request->base) : NULL;
    if (!request) {
        free(relay);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    }
    atomic_init(&relay->n_refs, 1);
    pthread_mutex_init(&relay->lock, NULL);
    relay->shared = shared;
    relay->whole = params->whole;
    relay->request = (Sluice__V1__GenerateRequest *)request;
    relay->n_choices = n_choices_of(relay->request);
    relay->n_answers = n_answers_of(relay->request);
    for (uint32_t i = 0; i < relay->n_choices; i++)
        relay->order[i] = i;
    relay->window_ms = relay->request->reattach_window_ms;
    relay->credit_tokens =
        relay->request->has_credit_tokens ? relay->request->credit_tokens : UINT64_MAX;
    atomic_init(&relay->priority, relay->request->has_priority ? relay->request->priority : 0);
    relay->meter.arrived_ns = clock_now_ns();
    relay->waits_ns = awake_clock_now_ns(shared->clock);
    relay->deadline_ns = params->deadline_ns;
    relay->template_time_ns = clock_wall_ns();
    const Sluice__V1__Sampling *sampling = relay->request->sampling;
    relay->seed = sampling && sampling->has_seed ? sampling->seed : rng_u64();
    relay_take_sampling(relay, NULL);
    snprintf(relay->caller, sizeof(relay->caller), "%s", params->caller);
    relay->meter.trace = *params->trace;
    trace_format(params->trace, relay->meter.traceparent);
    if (relay->request->request_id[0])
        snprintf(relay->request_id, sizeof(relay->request_id), "%s", relay->request->request_id);
    else
        rng_uuid(relay->request_id);
    *out_relay = relay;
    return 0;
}

void relay_retain(struct relay *relay)
{
    atomic_fetch_add(&relay->n_refs, 1);
}

void relay_release(struct relay *relay)
{
    if (!relay || atomic_fetch_sub(&relay->n_refs, 1) != 1)
        return;
    assert(!relay->seat.link); /* dispatch_close has taken the request off its worker */
    for (uint32_t i = 0; i < RELAY_MAX_CHOICES; i++)
        relay_choice_fini(&relay->choices[i]);
    if (relay->prompt_info)
        rpc_message_free(&relay->prompt_info->base);
    if (relay->usage)
        rpc_message_free(&relay->usage->base);
    if (relay->receipt)
        rpc_message_free(&relay->receipt->base);
    rpc_message_free(&relay->request->base);
    relay_sink_release(relay->sink);
    meter_release_version(relay->meter.version);
    pthread_mutex_destroy(&relay->lock);
    free(relay);
}

/* --- from the worker --- */

static void error_from_wire(const Sluice__V1__Error *wire, struct error *out)
{
    error_set(out, status_from_grpc(wire->code), "%s", wire->message);
    snprintf(out->field, sizeof(out->field), "%s", wire->field);
    error_reason_parse(out, wire->reason);
    out->retry_after_ms = wire->retry_after_ms;
    if (out->status == STATUS_OK)
        error_set(out, STATUS_INTERNAL, "the worker reported an error without a code");
}

/* Under the relay's lock: the replica that resumes the request did not refuse it. Counts the
 * resume. */
static void settle_resume(struct relay *relay)
{
    if (!relay->resumed_lost_ns)
        return;
    relay->resumed_lost_ns = 0;
    relay->n_resumes++;
    counters_event(relay->shared->counters, COUNTER_RESUME);
}

void relay_fix_outcome(struct relay *relay, const struct error *outcome)
{
    if (relay->ended)
        return;
    relay->ended = true;
    settle_resume(relay);
    if (outcome)
        relay->outcome = *outcome;
    else if (relay_holds_back(relay))
        relay_rank(relay);
}

void relay_set_pause(struct relay *relay, enum relay_pause why, bool on)
{
    unsigned pauses = on ? relay->pauses | why : relay->pauses & ~(unsigned)why;
    bool changed = !pauses != !relay->pauses;
    unsigned unsent = RELAY_PAUSE_PENDING | RELAY_PAUSE_TOKENS;
    if (on && !(relay->pauses & why) && why & unsent) {
        counters_refusal(relay->shared->counters,
                         why == RELAY_PAUSE_TOKENS ? LIMIT_PENDING_TOKENS : LIMIT_PENDING_BYTES);
        if (!(relay->pauses & unsent))
            counters_event(relay->shared->counters, COUNTER_PAUSE);
    }
    relay->pauses = pauses;
    if (changed && relay->seat.stream)
        upstream_pause(relay->seat.stream, relay->seat.id, pauses != 0);
}

/* While no client is attached, the data that the client may lack must not outgrow the replay
 * buffer. */
static void check_replay(struct relay *relay)
{
    size_t n_bytes = relay->pending_bytes;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n_bytes += relay->choices[i].sent_bytes;
    bool full = relay->detached_ns && n_bytes > relay->shared->limits->max_replay_bytes;
    if (full && !(relay->pauses & RELAY_PAUSE_REPLAY) && !relay->ended)
        counters_refusal(relay->shared->counters, LIMIT_REPLAY_BYTES);
    relay_set_pause(relay, RELAY_PAUSE_REPLAY, full && !relay->ended);
}

/* Limits the unsent tokens as well as the unsent bytes, because many small tokens are few bytes.
 * All unsent tokens are wasted work if the client leaves. */
static void check_pending_tokens(struct relay *relay)
{
    size_t limit = relay->shared->limits->max_pending_tokens;
    size_t n = relay_n_unsent(relay) + relay->in_flight_tokens;
    bool is_over = relay->sink && n > limit - limit / 4 && !relay->ended && !relay->whole &&
                   !relay_holds_back(relay);
    bool is_under = !relay->sink || relay->ended || n <= limit / 2;
    if (is_over || is_under)
        relay_set_pause(relay, RELAY_PAUSE_TOKENS, is_over);
}

void relay_check_pending(struct relay *relay)
{
    /* Choices that are held back for the ranking do not wait for the client. */
    bool held_back = relay_holds_back(relay) && !relay->ended;
    size_t n_bytes = held_back ? 0 : relay->pending_bytes + relay->in_flight_bytes;
    size_t limit = relay->shared->limits->max_pending_bytes;
    size_t high = limit - limit / 4; /* leaves room for tokens that the worker makes before it
                                      * pauses */
    struct relay_sink *sink = relay->sink;
    bool crowded = false;
    if (sink && sink->ops->pending) {
        crowded = sink->ops->pending(sink, (int64_t)n_bytes - (int64_t)relay->shared_bytes);
        relay->shared_bytes = n_bytes;
    }
    if (relay->pauses & RELAY_PAUSE_PENDING) {
        if (!sink || (n_bytes <= limit / 2 && !crowded))
            relay_set_pause(relay, RELAY_PAUSE_PENDING, false);
    } else if (sink && (n_bytes > high || (crowded && n_bytes)) && !relay->ended && !relay->whole &&
               !relay_holds_back(relay)) {
        relay_set_pause(relay, RELAY_PAUSE_PENDING, true);
    }
    check_pending_tokens(relay);
    if (relay->window_ms)
        check_replay(relay);
}

void relay_settle_refusal(const struct relay *relay, struct error *err)
{
    counters_refusal_reason(relay->shared->counters, err);
    int64_t retry_ns = err->retry_after_ms * NS_PER_MS;
    if (err->reason != REASON_DEADLINE_UNREACHABLE ||
        relay->deadline_ns - clock_now_ns() > retry_ns)
        return;
    err->status = STATUS_DEADLINE_EXCEEDED;
    err->retry_after_ms = 0;
}

/* Under the relay's lock: writes the worker's report into the record. *out_ours: the error was
 * found here, and the worker does not know of it. */
static enum relay_progress record_item(struct relay *relay,
                                       const Sluice__Worker__V1__StepItem *item, bool *out_ours)
{
    struct error err;
    err.status = STATUS_OK; /* error_set fills the other fields */
    if (relay->ended)       /* cancelled a moment ago; the canceller informs the worker */
        return item->error ? RELAY_OVER : RELAY_GOES_ON;
    if (item->error) {
        error_from_wire(item->error, &err);
        if (upstream_is_ending(&err))
            return RELAY_MOVES;
        if (upstream_is_queue_refusal(err.reason) && relay->resumed_lost_ns)
            return RELAY_WAITS;
        if (!relay->turned_away && upstream_is_queue_refusal(err.reason)) {
            relay->turned_away = true;
            return RELAY_ELSEWHERE;
        }
        relay_settle_refusal(relay, &err);
        relay_fix_outcome(relay, &err);
        return RELAY_OVER;
    }
    settle_resume(relay);
    if (item->accepted) {
        if (relay->stage == RELAY_SENT)
            relay->stage = RELAY_ACCEPTED;
        return RELAY_GOES_ON;
    }
    relay->stage = RELAY_IN_STEPS;
    if (item->choice >= relay->n_choices)
        error_set(&err, STATUS_INTERNAL,
                  "the worker answered for choice %" PRIu32 ", but the request has %" PRIu32,
                  item->choice, relay->n_choices);
    else if (relay->choices[item->choice].finished && (item->n_token_ids || item->text[0]))
        error_set(&err, STATUS_INTERNAL, "the worker continued choice %" PRIu32 " after its end",
                  item->choice);
    else if (!relay_record_item(relay, item))
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "response: out of memory");
    else
        relay_check_bounds(relay, item->choice, &err);
    *out_ours = err.status != STATUS_OK;
    if (*out_ours)
        relay_fix_outcome(relay, &err);
    else if (relay_all_finished(relay))
        relay_fix_outcome(relay, NULL);
    return relay->ended && !*out_ours ? RELAY_OVER : RELAY_GOES_ON;
}

enum relay_progress relay_on_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item,
                                  bool more)
{
    bool ours = false;
    pthread_mutex_lock(&relay->lock);
    relay->more_items = more;
    enum relay_progress progress = record_item(relay, item, &ours);
    relay_check_pending(relay);
    pthread_mutex_unlock(&relay->lock);
    if (ours)
        return RELAY_LEAVES;
    if (item->accepted)
        relay_tell_accepted(relay);
    else if (!more || progress != RELAY_GOES_ON)
        relay_tell(relay);
    return progress;
}

/* Under the relay's lock: the request has no worker from now on. The caller releases the seat. */
static struct relay_seat leave_seat(struct relay *relay)
{
    struct relay_seat seat = relay->seat;
    relay->seat = (struct relay_seat){.link = NULL};
    relay->more_items = false;
    return seat;
}

struct relay_seat relay_leave_seat(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    struct relay_seat seat = leave_seat(relay);
    pthread_mutex_unlock(&relay->lock);
    return seat;
}

/* Under the relay's lock: true if the request was in no step because it waited for its client.
 * Before the first token the result is false: the prompt may have killed the worker, paused or
 * not. */
static bool was_paused(const struct relay *relay)
{
    uint64_t n_generated = 0, n_released = 0;
    for (uint32_t i = 0; i < relay->n_choices; i++) {
        n_generated += relay->choices[i].generated.n;
        n_released += relay->choices[i].n_released;
    }
    bool no_credit = !relay_holds_back(relay) && n_released >= relay->credit_tokens;
    return n_generated > 0 && (relay->pauses || no_credit);
}

/* Under the relay's lock: counts a replica loss. True where the request gets no other replica. */
static bool count_loss(struct relay *relay)
{
    uint64_t n = 1;
    if (was_paused(relay))
        return false;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n += relay->choices[i].generated.n;
    if (n != relay->n_at_loss)
        relay->n_losses = relay->n_step_losses = 0;
    relay->n_at_loss = n;
    relay->n_losses++;
    relay->n_step_losses += relay->stage == RELAY_IN_STEPS;
    return relay->n_step_losses >= RELAY_MAX_STEP_LOSSES || relay->n_losses >= RELAY_MAX_LOSSES;
}

enum relay_next relay_on_lost(struct relay *relay, bool drained, struct relay_seat *out_seat,
                              struct error *err)
{
    pthread_mutex_lock(&relay->lock);
    *out_seat = leave_seat(relay);
    bool over = relay->ended;
    settle_resume(relay);
    bool give_up = !drained && !over && count_loss(relay);
    uint32_t n_losses = relay->n_losses;
    if (!relay->lost_ns)
        relay->lost_ns = awake_clock_now_ns(relay->shared->clock);
    pthread_mutex_unlock(&relay->lock);
    if (!give_up)
        return over ? RELAY_NEXT_NOTHING : RELAY_NEXT_REPLICA;
    error_set(err, STATUS_UNAVAILABLE,
              "%" PRIu32 " replicas in a row were lost with this request before they made a "
              "new token of it; tokens sent: %" PRIu64,
              n_losses, relay_n_released(relay));
    error_reason(err, REASON_REPLICA_LOST);
    error_tokens_sent(err, relay_n_released(relay));
    err->retry_after_ms = 1000;
    return RELAY_NEXT_END;
}

enum relay_next relay_on_refused(struct relay *relay, struct relay_seat *out_seat)
{
    pthread_mutex_lock(&relay->lock);
    *out_seat = leave_seat(relay);
    bool over = relay->ended;
    relay->lost_ns = relay->resumed_lost_ns;
    relay->resumed_lost_ns = 0;
    relay->refused_ns = clock_now_ns();
    pthread_mutex_unlock(&relay->lock);
    return over ? RELAY_NEXT_NOTHING : RELAY_NEXT_REPLICA;
}

enum relay_next relay_on_turned_away(struct relay *relay, const Sluice__Worker__V1__StepItem *item,
                                     struct relay_seat *out_seat, struct error *err)
{
    error_from_wire(item->error, err);
    pthread_mutex_lock(&relay->lock);
    *out_seat = leave_seat(relay);
    bool over = relay->ended;
    pthread_mutex_unlock(&relay->lock);
    return over ? RELAY_NEXT_NOTHING : RELAY_NEXT_REPLICA;
}

/* --- the end --- */

void relay_end(struct relay *relay, const struct error *outcome)
{
    pthread_mutex_lock(&relay->lock);
    relay_fix_outcome(relay, outcome);
    pthread_mutex_unlock(&relay->lock);
    relay_tell(relay);
}

void relay_fill_end(const struct relay *relay, struct meter_end *out_end)
{
    const Sluice__V1__Finished *finished = relay->choices[0].finished;
    out_end->finish_reason = finished ? (int)finished->reason : 0;
    out_end->reason = error_reason_name(&relay->outcome);
    out_end->request_id = relay->request_id;
    out_end->caller = relay->caller;
    out_end->model = relay->model;
    out_end->version = relay->version;
    out_end->n_resumes = relay->n_resumes;
}

int relay_outcome(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    int status = relay->outcome.status;
    pthread_mutex_unlock(&relay->lock);
    return status;
}

uint64_t relay_n_sent(const struct relay *relay)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < relay->n_answers; i++)
        n += relay->choices[relay->order[i]].n_sent;
    return n;
}

bool relay_lacks_credit(const struct relay *relay)
{
    return relay->credit_tokens != UINT64_MAX && relay_n_sent(relay) >= relay->credit_tokens;
}

uint64_t relay_count_released(const struct relay *relay)
{
    uint64_t n = 0;
    if (relay->whole || relay_holds_back(relay))
        return relay_n_sent(relay);
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n += relay->choices[i].n_released;
    return n < relay->credit_tokens ? n : relay->credit_tokens;
}

uint64_t relay_n_released(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    uint64_t n = relay_count_released(relay);
    pthread_mutex_unlock(&relay->lock);
    return n;
}

int64_t relay_lost_since(struct relay *relay, int64_t awake_ns)
{
    pthread_mutex_lock(&relay->lock);
    if (!relay->lost_ns)
        relay->lost_ns = awake_ns;
    int64_t since_ns = relay->lost_ns;
    pthread_mutex_unlock(&relay->lock);
    return since_ns;
}

bool relay_is_slow(struct relay *relay, int64_t awake_ns)
{
    pthread_mutex_lock(&relay->lock);
    bool watched = relay->sink && relay->sink->ops->watched;
    bool slow =
        !watched && relay->put_ns &&
        awake_ns - relay->put_ns > (int64_t)relay->shared->limits->slow_reader_ms * NS_PER_MS;
    pthread_mutex_unlock(&relay->lock);
    return slow;
}
