#include "server/gateway/relay.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/rpc_call.h"
#include "proto/rpc/rpc_message.h"
#include "proto/rpc/rpc_stream.h"
#include "server/gateway/gateway.h"
#include "server/gateway/link.h"
#include "server/gateway/relay_message.h"
#include "server/gateway/validate.h"

int relay_create(struct gateway *gateway, struct rpc_call *call,
                 const Sluice__V1__GenerateRequest *request, bool whole, struct relay **out_relay,
                 struct error *err)
{
    struct relay *relay = calloc(1, sizeof(*relay));
    if (!relay)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    atomic_init(&relay->n_refs, 1);
    pthread_mutex_init(&relay->lock, NULL);
    rpc_call_retain(call);
    relay->gateway = gateway;
    relay->call = call;
    relay->whole = whole;
    relay->request = request;
    relay->n_choices = request_n_choices(request);
    relay->arrived_ns = clock_now_ns();
    relay->template_time_ns = clock_wall_ns();
    const Sluice__V1__Sampling *sampling = request->sampling;
    relay->seed = sampling && sampling->has_seed ? sampling->seed : rng_u64();
    snprintf(relay->caller, sizeof(relay->caller), "anonymous");
    if (request->request_id[0])
        snprintf(relay->request_id, sizeof(relay->request_id), "%s", request->request_id);
    else
        rng_uuid(relay->request_id);
    *out_relay = relay;
    return 0;
}

void relay_retain(struct relay *relay)
{
    atomic_fetch_add(&relay->n_refs, 1);
}

static void free_choice(struct relay_choice *choice)
{
    free(choice->generated.ids);
    strbuf_fini(&choice->pending_text);
    for (size_t i = 0; i < choice->n_logprobs; i++)
        rpc_message_free(&choice->logprobs[i]->base);
    free(choice->logprobs);
    if (choice->finished)
        rpc_message_free(&choice->finished->base);
}

void relay_release(struct relay *relay)
{
    if (!relay || atomic_fetch_sub(&relay->n_refs, 1) != 1)
        return;
    for (uint32_t i = 0; i < RELAY_MAX_CHOICES; i++)
        free_choice(&relay->choices[i]);
    if (relay->prompt_info)
        rpc_message_free(&relay->prompt_info->base);
    link_release(relay->link);
    rpc_stream_release(relay->stream);
    rpc_call_release(relay->call);
    pthread_mutex_destroy(&relay->lock);
    free(relay);
}

static bool append_ids(struct relay_ids *list, const uint32_t *ids, size_t n)
{
    if (list->n + n > list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        while (capacity < list->n + n)
            capacity *= 2;
        uint32_t *grown = realloc(list->ids, capacity * sizeof(*grown));
        if (!grown)
            return false;
        list->ids = grown;
        list->capacity = capacity;
    }
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
        ProtobufCMessage *copy = relay_message_copy(&logprobs[i]->base);
        if (!copy)
            return false;
        choice->logprobs[choice->n_logprobs++] = (Sluice__V1__TokenLogprob *)copy;
    }
    return true;
}

/* Under the relay's lock. False: memory is exhausted. */
static bool record_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item)
{
    struct relay_choice *choice = &relay->choices[item->choice];
    size_t text_bytes = strlen(item->text);
    if (item->prompt_info && !relay->prompt_info) {
        relay->prompt_info = (Sluice__V1__PromptInfo *)relay_message_copy(&item->prompt_info->base);
        if (!relay->prompt_info)
            return false;
    }
    if (!append_ids(&choice->generated, item->token_ids, item->n_token_ids) ||
        !append_logprobs(choice, item->logprobs, item->n_logprobs) ||
        !strbuf_add(&choice->pending_text, item->text, text_bytes))
        return false;
    size_t held = choice->generated.n - choice->n_released;
    choice->n_released += item->n_released < held ? item->n_released : held;
    choice->text_bytes += text_bytes;
    relay->pending_bytes += text_bytes + 4 * item->n_token_ids + 64 * item->n_logprobs;
    if (item->finished && !choice->finished) {
        choice->finished = (Sluice__V1__Finished *)relay_message_copy(&item->finished->base);
        if (!choice->finished)
            return false;
    }
    return true;
}

static bool all_finished(const struct relay *relay)
{
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (!relay->choices[i].finished)
            return false;
    return true;
}

static void error_from_wire(const Sluice__V1__Error *wire, struct error *out)
{
    error_set(out, status_from_grpc(wire->code), "%s", wire->message);
    snprintf(out->field, sizeof(out->field), "%s", wire->field);
    snprintf(out->reason, sizeof(out->reason), "%s", wire->reason);
    out->retry_after_ms = wire->retry_after_ms;
    if (out->status == STATUS_OK)
        error_set(out, STATUS_INTERNAL, "the worker reported an error without a code");
}

/* Under the relay's lock. */
static void fix_outcome(struct relay *relay, const struct error *outcome)
{
    if (relay->ended)
        return;
    relay->ended = true;
    if (outcome)
        relay->outcome = *outcome;
}

/* Under the relay's lock, so that pause and resume reach the worker in the order they were decided.
 */
static void set_paused(struct relay *relay, bool paused)
{
    relay->paused = paused;
    relay->paused_ns = clock_now_ns();
    if (paused)
        atomic_fetch_add(&relay->gateway->counters.pauses, 1);
    if (relay->stream)
        link_send_pause(relay->stream, relay->link_id, paused);
}

bool relay_on_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item)
{
    struct error err;
    bool over = true;
    pthread_mutex_lock(&relay->lock);
    error_clear(&err);
    if (item->error)
        error_from_wire(item->error, &err);
    else if (item->choice >= relay->n_choices)
        error_set(&err, STATUS_INTERNAL, "the worker answered for choice %" PRIu32 " of %" PRIu32,
                  item->choice, relay->n_choices);
    else if (!record_item(relay, item))
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "response: out of memory");
    else
        over = all_finished(relay);
    if (over)
        fix_outcome(relay, err.status ? &err : NULL);
    else if (!relay->whole && !relay->paused && !relay->ended &&
             relay->pending_bytes > relay->gateway->config.max_pending_bytes)
        set_paused(relay, true);
    pthread_mutex_unlock(&relay->lock);
    rpc_call_kick(relay->call);
    return over;
}

/* Takes the link off the relay, under its lock; the caller releases what it gets. */
struct held_link {
    struct link *link;
    struct rpc_stream *stream;
    uint64_t id;
};

static struct held_link detach(struct relay *relay)
{
    struct held_link held = {relay->link, relay->stream, relay->link_id};
    relay->link = NULL;
    relay->stream = NULL;
    return held;
}

static void release_held(struct held_link *held)
{
    rpc_stream_release(held->stream);
    link_release(held->link);
}

void relay_on_lost(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    struct held_link held = detach(relay);
    bool over = relay->ended;
    if (!relay->lost_ns)
        relay->lost_ns = clock_now_ns();
    relay->paused = false;
    pthread_mutex_unlock(&relay->lock);
    release_held(&held);
    if (!over)
        gateway_dispatch(relay->gateway, relay);
}

void relay_end(struct relay *relay, const struct error *outcome)
{
    pthread_mutex_lock(&relay->lock);
    fix_outcome(relay, outcome);
    pthread_mutex_unlock(&relay->lock);
    rpc_call_kick(relay->call);
}

/* Takes the link off the relay and cancels the request there. */
static void leave_link(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    struct held_link held = detach(relay);
    pthread_mutex_unlock(&relay->lock);
    if (held.link)
        link_cancel(held.link, held.id);
    release_held(&held);
}

uint64_t relay_cancel(struct relay *relay, const struct error *why)
{
    uint64_t n_sent = 0;
    pthread_mutex_lock(&relay->lock);
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n_sent += relay->choices[i].n_sent;
    fix_outcome(relay, why);
    pthread_mutex_unlock(&relay->lock);
    leave_link(relay);
    rpc_call_kick(relay->call);
    return n_sent;
}

void relay_fill_submit(struct relay *relay, struct relay_submit *out)
{
    *out = (struct relay_submit){.submit = SLUICE__WORKER__V1__SUBMIT__INIT,
                                 .resume = SLUICE__WORKER__V1__RESUME_STATE__INIT};
    Sluice__Worker__V1__Submit *submit = &out->submit;
    submit->id = relay->link_id;
    submit->request = (Sluice__V1__GenerateRequest *)(uintptr_t)relay->request;
    submit->version = relay->version;
    submit->seed = relay->seed;
    submit->template_time_unix_ns = relay->template_time_ns;
    submit->tenant = relay->caller;
    int64_t deadline = rpc_call_deadline_ns(relay->call);
    if (deadline != INT64_MAX) {
        int64_t left = deadline - clock_now_ns();
        submit->has_deadline_remaining_ns = true;
        submit->deadline_remaining_ns = left > 0 ? (uint64_t)left : 1;
    }
    size_t n_caller = strlen(relay->caller) + 1, n_salt = strlen(relay->request->cache_salt);
    memcpy(out->cache_key, relay->caller, n_caller);
    memcpy(out->cache_key + n_caller, relay->request->cache_salt, n_salt);
    submit->cache_key = (ProtobufCBinaryData){.len = n_caller + n_salt, .data = out->cache_key};
    if (!relay->prompt_info)
        return;
    submit->resume = &out->resume;
    out->resume.n_prompt_token_ids = relay->prompt_info->n_prompt_token_ids;
    out->resume.prompt_token_ids = relay->prompt_info->prompt_token_ids;
    out->resume.numerics_id = relay->numerics_id;
    out->resume.n_choices = relay->n_choices;
    out->resume.choices = out->choice_list;
    for (uint32_t i = 0; i < relay->n_choices; i++) {
        struct relay_choice *choice = &relay->choices[i];
        out->choices[i] =
            (Sluice__Worker__V1__ResumedChoice)SLUICE__WORKER__V1__RESUMED_CHOICE__INIT;
        out->choices[i].choice = i;
        out->choices[i].generated_ids = choice->generated.ids;
        out->choices[i].n_generated_ids = choice->generated.n;
        out->choices[i].text_bytes_sent = choice->text_bytes;
        out->choices[i].n_released = (uint32_t)choice->n_released;
        out->choices[i].finished = choice->finished != NULL;
        out->choice_list[i] = &out->choices[i];
    }
}

bool relay_is_slow(struct relay *relay, int64_t now_ns)
{
    pthread_mutex_lock(&relay->lock);
    bool slow =
        relay->paused && !relay->ended &&
        now_ns - relay->paused_ns > (int64_t)relay->gateway->config.slow_reader_ms * NS_PER_MS;
    pthread_mutex_unlock(&relay->lock);
    return slow;
}

static void on_next(void *arg, struct rpc_out *out)
{
    struct relay *relay = arg;
    pthread_mutex_lock(&relay->lock);
    if (relay->whole)
        relay_put_whole(relay, out);
    else
        relay_put_next(relay, out);
    if (relay->paused && !relay->pending_bytes)
        set_paused(relay, false);
    pthread_mutex_unlock(&relay->lock);
}

static void on_cancel(void *arg, struct rpc_call *call)
{
    struct error why;
    (void)call;
    error_set(&why, STATUS_CANCELLED, "the client cancelled or is gone");
    relay_cancel(arg, &why);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct relay *relay = arg;
    struct gateway_counters *counters = &relay->gateway->counters;
    bool cancelled = rpc_call_cancelled(call);
    leave_link(relay);
    pthread_mutex_lock(&relay->lock);
    relay->ended = true;
    relay->settled = true;
    int status = relay->outcome.status;
    uint64_t n_tokens = 0;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n_tokens += relay->choices[i].n_sent;
    pthread_mutex_unlock(&relay->lock);
    registry_remove(&relay->gateway->registry, relay->caller, relay->request_id, relay);
    atomic_fetch_add(&counters->tokens, n_tokens);
    atomic_fetch_sub(&counters->live, 1);
    if (cancelled || status == STATUS_CANCELLED)
        atomic_fetch_add(&counters->cancelled, 1);
    else if (status)
        atomic_fetch_add(&counters->failed, 1);
    else
        atomic_fetch_add(&counters->ok, 1);
    relay_release(relay);
}

const struct rpc_call_events relay_events = {
    .on_cancel = on_cancel,
    .on_done = on_done,
    .next = on_next,
};
