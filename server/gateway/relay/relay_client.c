/* The client's side of a relay: its sink, the reattach, and the commands of a client while the
 * request runs. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/relay/relay_private.h"
#include "server/gateway/relay/upstream.h"

/* --- the sink --- */

void relay_tell(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    struct relay_sink *sink = relay->sink;
    if (sink)
        relay_sink_retain(sink);
    pthread_mutex_unlock(&relay->lock);
    if (sink)
        sink->ops->ready(sink);
    relay_sink_release(sink);
}

void relay_tell_accepted(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    struct relay_sink *sink = relay->sink;
    if (sink)
        relay_sink_retain(sink);
    pthread_mutex_unlock(&relay->lock);
    if (sink && sink->ops->accepted)
        sink->ops->accepted(sink);
    relay_sink_release(sink);
}

/* Under the relay's lock. The caller releases the returned sink. */
static struct relay_sink *swap_sink(struct relay *relay, struct relay_sink *sink)
{
    struct relay_sink *old = relay->sink;
    if (old && old->ops->pending)
        old->ops->pending(old, -(int64_t)relay->shared_bytes);
    relay->shared_bytes = 0;
    relay->in_flight_bytes = relay->in_flight_tokens = 0;
    relay->put_ns = 0;
    relay->sink = sink;
    if (sink)
        relay_sink_retain(sink);
    return old;
}

bool relay_take_off(struct relay *relay, const struct relay_sink *sink, struct relay_sink **out_old)
{
    if (relay->sink != sink)
        return false;
    *out_old = swap_sink(relay, NULL);
    return true;
}

void relay_attach(struct relay *relay, struct relay_sink *sink)
{
    pthread_mutex_lock(&relay->lock);
    struct relay_sink *old = swap_sink(relay, sink);
    relay_check_pending(relay);
    pthread_mutex_unlock(&relay->lock);
    relay_sink_release(old);
}

bool relay_speaks_to(struct relay *relay, const struct relay_sink *sink)
{
    pthread_mutex_lock(&relay->lock);
    bool speaks = relay->sink == sink;
    pthread_mutex_unlock(&relay->lock);
    return speaks;
}

/* --- reattach --- */

static int not_found(const struct relay *relay, struct error *err)
{
    error_set(err, STATUS_NOT_FOUND, "request_id: no live request \"%s\"", relay->request_id);
    return error_reason(err, REASON_REQUEST_NOT_FOUND);
}

static uint32_t received_of(Sluice__V1__ReceivedTokens *const *received, size_t n_received,
                            uint32_t choice)
{
    for (size_t i = 0; i < n_received; i++)
        if (received[i]->choice == choice)
            return received[i]->n_tokens;
    return 0;
}

/* Under the relay's lock: checks the counts of tokens that the client has. */
static int check_received(const struct relay *relay, Sluice__V1__ReceivedTokens *const *received,
                          size_t n_received, struct error *err)
{
    uint64_t n_all = 0;
    for (size_t i = 0; i < n_received; i++) {
        char field[64];
        uint32_t choice = received[i]->choice, n = received[i]->n_tokens;
        bool answers = choice < relay->n_answers && (!relay_holds_back(relay) || relay->ended);
        size_t n_most = answers ? relay->choices[relay->order[choice]].n_released : 0;
        snprintf(field, sizeof(field), "reattach.received[%zu].choice", i);
        if (choice >= relay->n_answers)
            return error_field(err, field, "%" PRIu32 " is not below %" PRIu32, choice,
                               relay->n_answers);
        snprintf(field, sizeof(field), "reattach.received[%zu].n_tokens", i);
        if (n > n_most)
            return error_field(err, field, "%" PRIu32 " is more than the %zu generated tokens", n,
                               n_most);
    }
    for (uint32_t i = 0; i < relay->n_answers; i++)
        n_all += received_of(received, n_received, i);
    if (n_all > relay->credit_tokens)
        return error_field(err, "reattach.received",
                           "%" PRIu64 " tokens are more than the %" PRIu64 " of the credit", n_all,
                           relay->credit_tokens);
    for (uint32_t i = 0; i < relay->n_answers; i++) {
        const struct relay_choice *choice = &relay->choices[relay->order[i]];
        uint32_t n = received_of(received, n_received, i);
        if (n >= choice->n_held)
            continue;
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "reattach.received: choice %" PRIu32 " should continue at token %" PRIu32
                  ", but the replay buffer begins at %zu",
                  i, n, choice->n_held);
        return error_reason(err, REASON_REPLAY_GONE);
    }
    return 0;
}

/* Under the relay's lock: resets the sent counts to the tokens that the client has. */
static void rewind_to(struct relay *relay, Sluice__V1__ReceivedTokens *const *received,
                      size_t n_received)
{
    /* Before the ranking, all choices count as pending; the ranking subtracts those that are not
     * sent. */
    uint32_t n_counted =
        relay_holds_back(relay) && !relay->ended ? relay->n_choices : relay->n_answers;
    relay->pending_bytes = 0;
    for (uint32_t i = 0; i < n_counted; i++) {
        struct relay_choice *choice = &relay->choices[relay->order[i]];
        uint32_t n = i < relay->n_answers ? received_of(received, n_received, i) : 0;
        choice->n_sent = n;
        choice->text_sent = n ? choice->text_ends.ids[n - 1] : 0;
        if (choice->text_sent < choice->text_held) /* text without ids was dropped with the ids
                                                    * before it */
            choice->text_sent = choice->text_held;
        relay_choice_drop(choice, n);
        choice->sent_bytes = 0;
        choice->finished_sent = false;
        relay->pending_bytes += (size_t)(choice->text_bytes - choice->text_sent) +
                                4 * (choice->generated.n - n) +
                                relay_logprob_bytes(choice, n, choice->generated.n);
    }
    relay->prompt_info_sent = false;
    relay->end_sent = false;
}

/* Under the relay's lock: checks that the request can be reattached. */
static int check_reattach(const struct relay *relay, Sluice__V1__ReceivedTokens *const *received,
                          size_t n_received, struct error *err)
{
    bool begun = relay->sink || relay->detached_ns; /* else the starting call has not attached
                                                     * its sink yet */
    if (relay->closed || relay->forgotten || relay_has_failed(relay) || !begun)
        return not_found(relay, err);
    if (!relay->window_ms) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "reattach: \"%s\" was started without reattach_window_ms", relay->request_id);
        return error_reason(err, REASON_NOT_REATTACHABLE);
    }
    return check_received(relay, received, n_received, err);
}

int relay_reattach(struct relay *relay, struct relay_sink *sink,
                   Sluice__V1__ReceivedTokens *const *received, size_t n_received,
                   struct error *err)
{
    struct relay_sink *old = NULL;
    struct error why;
    pthread_mutex_lock(&relay->lock);
    int rc = check_reattach(relay, received, n_received, err);
    if (!rc) {
        relay->no_more_frames = false;
        rewind_to(relay, received, n_received);
        if (relay->detached_ns)
            atomic_fetch_sub(&relay->shared->n_detached, 1);
        relay->detached_ns = 0;
        old = swap_sink(relay, sink);
        relay_check_pending(relay);
    }
    pthread_mutex_unlock(&relay->lock);
    if (!rc && old != sink)
        counters_event(relay->shared->counters, COUNTER_REATTACH);
    if (old && old != sink) {
        error_set(&why, STATUS_ABORTED, "another connection has reattached to this request");
        error_reason(&why, REASON_REATTACHED);
        old->ops->taken_over(old, &why);
    }
    relay_sink_release(old);
    return rc;
}

/* --- frames --- */

/* Under the relay's lock: refuses client commands while the worker is slow, so that they do not
 * pile up. */
static int check_backlog(const struct relay *relay, struct error *err)
{
    int rc = relay->seat.stream ? upstream_check_backlog(relay->seat.stream, err) : 0;
    if (rc)
        counters_refusal(relay->shared->counters, LIMIT_QUEUED);
    return rc;
}

int relay_pause_by_client(struct relay *relay, bool paused, struct error *err)
{
    pthread_mutex_lock(&relay->lock);
    int rc = relay->ended ? not_found(relay, err) : check_backlog(relay, err);
    if (!rc)
        relay_set_pause(relay, RELAY_PAUSE_CLIENT, paused);
    pthread_mutex_unlock(&relay->lock);
    return rc;
}

/* Under the relay's lock: adds credit and sends it to the worker. */
static int add_credit(struct relay *relay, uint32_t n_tokens, struct error *err)
{
    if (relay->credit_tokens == UINT64_MAX) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "credit: \"%s\" was started without credit_tokens and needs none",
                  relay->request_id);
        return error_reason(err, REASON_NO_CREDIT_NEEDED);
    }
    uint64_t left = relay->credit_tokens - relay_n_sent(relay);
    if (left + n_tokens > INT32_MAX)
        return error_field(err, "credit.n_tokens",
                           "%" PRIu32 " and the unused %" PRIu64 " exceed the limit of %d",
                           n_tokens, left, INT32_MAX);
    if (check_backlog(relay, err) != 0)
        return err->status;
    relay->credit_tokens += n_tokens;
    if (relay->seat.stream && !relay_holds_back(relay))
        upstream_credit(relay->seat.stream, relay->seat.id, n_tokens);
    return 0;
}

int relay_credit(struct relay *relay, uint32_t n_tokens, struct error *err)
{
    pthread_mutex_lock(&relay->lock);
    /* The worker may have finished a request while its last tokens still wait for credit. */
    int rc = relay->closed || (relay->ended && relay->outcome.status)
                 ? not_found(relay, err)
                 : add_credit(relay, n_tokens, err);
    pthread_mutex_unlock(&relay->lock);
    if (!rc)
        relay_tell(relay);
    return rc;
}

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "update: out of memory");
}

static Sluice__V1__Stopping *own_stopping(Sluice__V1__GenerateRequest *request)
{
    if (!request->stopping && (request->stopping = malloc(sizeof(*request->stopping))))
        sluice__v1__stopping__init(request->stopping);
    return request->stopping;
}

/* Swaps the strings, so that the update's copy frees the old ones. */
static void swap_stops(Sluice__V1__Stopping *stopping, Sluice__V1__UpdateFrame *update)
{
    char **stop = stopping->stop;
    size_t n = stopping->n_stop;
    stopping->stop = update->stop;
    stopping->n_stop = update->n_stop;
    update->stop = stop;
    update->n_stop = n;
}

/* Under the relay's lock. The stored request changes too, so that a resume elsewhere uses the
 * new values. */
static int update_request(struct relay *relay, const Sluice__V1__UpdateFrame *update,
                          struct error *err)
{
    Sluice__V1__GenerateRequest *request = relay->request;
    Sluice__V1__UpdateFrame *copy = (Sluice__V1__UpdateFrame *)relay_copy(&update->base);
    if (!copy)
        return out_of_memory(err);
    Sluice__V1__Stopping *stopping = own_stopping(request);
    if (!stopping) {
        rpc_message_free(&copy->base);
        return out_of_memory(err);
    }
    if (update->has_max_tokens) {
        stopping->has_max_tokens = true;
        stopping->max_tokens = update->max_tokens;
        relay_allow_tokens(relay, NULL);
    }
    if (update->has_priority) {
        request->has_priority = true;
        request->priority = update->priority;
        atomic_store(&relay->priority, update->priority);
    }
    if (relay->seat.stream)
        upstream_update(relay->seat.stream, relay->seat.id, update);
    if (update->replace_stop)
        swap_stops(stopping, copy);
    rpc_message_free(&copy->base);
    return 0;
}

/* Under the relay's lock: checks the values of an update. */
static int check_update(const struct relay *relay, const Sluice__V1__UpdateFrame *update,
                        struct error *err)
{
    const Sluice__V1__Stopping *stopping = relay->request->stopping;
    size_t n_most = 0;
    if (relay->ended)
        return not_found(relay, err);
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (relay->choices[i].generated.n > n_most)
            n_most = relay->choices[i].generated.n;
    if (update->has_max_tokens && update->max_tokens < n_most)
        return error_field(err, "update.max_tokens",
                           "%" PRIu32 " is below the %zu tokens that have been generated",
                           update->max_tokens, n_most);
    if (update->has_max_tokens && stopping && stopping->has_min_tokens &&
        update->max_tokens < stopping->min_tokens)
        return error_field(err, "update.max_tokens",
                           "%" PRIu32 " is below stopping.min_tokens (%" PRIu32 ")",
                           update->max_tokens, stopping->min_tokens);
    return 0;
}

int relay_update(struct relay *relay, const Sluice__V1__UpdateFrame *update, struct error *err)
{
    pthread_mutex_lock(&relay->lock);
    int rc = check_update(relay, update, err);
    if (!rc)
        rc = check_backlog(relay, err);
    if (!rc)
        rc = update_request(relay, update, err);
    pthread_mutex_unlock(&relay->lock);
    return rc;
}

void relay_no_more_frames(struct relay *relay, const struct relay_sink *sink)
{
    pthread_mutex_lock(&relay->lock);
    relay->no_more_frames |= relay->sink == sink;
    pthread_mutex_unlock(&relay->lock);
    relay_tell(relay);
}
