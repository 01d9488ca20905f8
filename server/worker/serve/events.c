#include "server/worker/serve/events.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/log.h"
#include "engine/engine.h"
#include "server/worker/base/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/serve/device_end.h"
#include "server/worker/serve/session.h"
#include "server/worker/serve/stream_request.h"
#include "server/worker/state/worker.h"

enum { ARENA_BYTES = 256 * 1024 };

/* Engine events of a read, on their way to the servers. */
struct gather {
    struct worker *worker;
    struct engine *engine;
    struct arena arena;
    struct session *touched;
    struct stream_request *ended;
};

/* --- items --- */

/* The functions that add to the frame report exhausted memory: they return false, or exhaust the
 * arena. The event's items are then removed from the frame, and the request ends. */

static Sluice__Worker__V1__StepItem *add_item(struct gather *g, struct stream_request *r,
                                              uint32_t choice)
{
    struct session *session = r->session;
    Sluice__Worker__V1__StepItem *item = arena_alloc(&g->arena, sizeof(*item));
    if (!item)
        return NULL;
    if (session->n_items == session->items_capacity) {
        size_t wider = session->items_capacity ? 2 * session->items_capacity : 64;
        Sluice__Worker__V1__StepItem **grown = realloc(session->items, wider * sizeof(*grown));
        if (!grown)
            return NULL;
        session->items = grown;
        session->items_capacity = wider;
    }
    if (!session->touched) {
        session->touched = true;
        session->next_touched = g->touched;
        g->touched = session;
        session_retain(session);
    }
    sluice__worker__v1__step_item__init(item);
    item->id = r->id;
    item->choice = choice;
    session->items[session->n_items++] = item;
    return item;
}

static bool add_prompt_info(struct gather *g, struct stream_request *r,
                            const struct engine_event *event)
{
    const struct settings *s = g->worker->settings;
    Sluice__Worker__V1__StepItem *item = add_item(g, r, 0);
    Sluice__V1__PromptInfo *info = arena_alloc(&g->arena, sizeof(*info));
    if (!item || !info)
        return false;
    sluice__v1__prompt_info__init(info);
    info->model = message_text(&g->arena, s->name);
    info->version = message_text(&g->arena, s->version_id);
    info->n_prompt_tokens = r->n_prompt_ids;
    info->n_cached_tokens = event->usage.n_cached_tokens;
    info->seed = r->seed;
    info->n_truncated_tokens = r->n_truncated;
    info->prompt_token_ids = r->prompt_ids;
    info->n_prompt_token_ids = r->n_prompt_ids;
    item->prompt_info = info;
    return true;
}

static ProtobufCBinaryData token_bytes(const struct gather *g, uint32_t id)
{
    size_t n = 0;
    const char *bytes = tokenizer_token_bytes(engine_tokenizer(g->engine), id, &n);
    /* the bytes are only read; protobuf-c's type has no const */
    return (ProtobufCBinaryData){.len = bytes ? n : 0, .data = (uint8_t *)(uintptr_t)bytes};
}

static Sluice__V1__TokenLogprob *make_logprob(struct gather *g,
                                              const struct engine_logprob *logprob)
{
    Sluice__V1__TokenLogprob *out = arena_alloc(&g->arena, sizeof(*out));
    uint32_t n = logprob->n_top;
    Sluice__V1__TopLogprob *tops = arena_calloc(&g->arena, n + 1, sizeof(*tops));
    Sluice__V1__TopLogprob **list = arena_calloc(&g->arena, n + 1, sizeof(*list));
    if (!out || !tops || !list)
        return NULL;
    sluice__v1__token_logprob__init(out);
    out->id = logprob->id;
    out->logprob = logprob->logprob;
    out->token = token_bytes(g, logprob->id);
    for (uint32_t i = 0; i < n; i++) {
        sluice__v1__top_logprob__init(&tops[i]);
        tops[i].id = logprob->top_ids[i];
        tops[i].logprob = logprob->top_logprobs[i];
        tops[i].token = token_bytes(g, logprob->top_ids[i]);
        list[i] = &tops[i];
    }
    out->top = list;
    out->n_top = n;
    return out;
}

/* Returns an array [n], or NULL. */
static Sluice__V1__TokenLogprob **make_logprobs(struct gather *g,
                                                const struct engine_logprob *logprobs, uint32_t n)
{
    Sluice__V1__TokenLogprob **list = arena_calloc(&g->arena, n + 1, sizeof(*list));
    for (uint32_t i = 0; list && i < n; i++)
        if (!(list[i] = make_logprob(g, &logprobs[i])))
            return NULL;
    return list;
}

/* Adds the next log-probabilities of the prompt. */
static bool add_prompt_logprobs(struct gather *g, struct stream_request *r,
                                const struct engine_event *event)
{
    Sluice__Worker__V1__StepItem *item = add_item(g, r, 0);
    Sluice__V1__PromptInfo *info = arena_alloc(&g->arena, sizeof(*info));
    if (!item || !info)
        return false;
    sluice__v1__prompt_info__init(info);
    info->first_prompt_logprob = event->first_prompt_token;
    info->prompt_logprobs = make_logprobs(g, event->logprobs, event->n_ids);
    info->n_prompt_logprobs = info->prompt_logprobs ? event->n_ids : 0;
    item->prompt_info = info;
    return info->prompt_logprobs != NULL;
}

/* Adds the sum of the log-probabilities, and the values themselves if the client asked for them. */
static bool add_logprobs(struct gather *g, struct stream_request *r,
                         const struct engine_event *event, Sluice__Worker__V1__StepItem *item)
{
    struct stream_choice *choice = &r->choices[event->choice];
    for (uint32_t i = 0; i < event->n_ids; i++)
        choice->logprob_sum += (double)event->logprobs[i].logprob;
    item->has_logprob_sum = true;
    item->logprob_sum = choice->logprob_sum;
    if (!r->send_logprobs)
        return true;
    item->logprobs = make_logprobs(g, event->logprobs, event->n_ids);
    item->n_logprobs = item->logprobs ? event->n_ids : 0;
    return item->logprobs != NULL;
}

/* Adds the text length of each released id. message_model_text keeps the length, so the engine's
 * figures hold. */
static void add_shares(Sluice__Worker__V1__StepItem *item, const struct engine_event *event)
{
    if (event->n_text_shares < item->n_released)
        return;
    item->released_text_bytes =
        (uint32_t *)(uintptr_t)event->text_shares + (event->n_text_shares - item->n_released);
    item->n_released_text_bytes = item->n_released;
}

static bool add_tokens(struct gather *g, struct stream_request *r, const struct engine_event *event)
{
    struct stream_choice *choice = &r->choices[event->choice];
    /* A run of ids that the server has from an earlier worker. */
    if (!event->n_ids && !event->n_text_bytes && event->n_released <= choice->n_released)
        return true;
    Sluice__Worker__V1__StepItem *item = add_item(g, r, event->choice);
    choice->n_generated += event->n_ids;
    atomic_fetch_add(&g->worker->n_generated_tokens, event->n_ids);
    if (!item)
        return false;
    /* The engine's arrays live until the next read; the frame is packed before. */
    item->token_ids = (uint32_t *)(uintptr_t)event->ids;
    item->n_token_ids = event->n_ids;
    item->kind = event->is_reasoning ? SLUICE__V1__PART_KIND__PART_KIND_REASONING
                                     : SLUICE__V1__PART_KIND__PART_KIND_UNSPECIFIED;
    item->text = message_model_text(&g->arena, event->text, event->n_text_bytes);
    if (event->n_released > choice->n_released) {
        item->n_released = event->n_released - choice->n_released;
        choice->n_released = event->n_released;
        add_shares(item, event);
    }
    if (event->logprobs && !add_logprobs(g, r, event, item))
        return false;
    stream_request_spend(r, item->n_released);
    return !event->n_text_bytes || item->text[0];
}

/* --- endings --- */

static bool is_end_id(const struct gather *g, const struct stream_request *r, int64_t id)
{
    const struct tokenizer_info *info = tokenizer_info(engine_tokenizer(g->engine));
    for (uint32_t i = 0; i < info->n_end_ids && !r->ignore_eos; i++)
        if (info->end_ids[i] == id)
            return true;
    for (uint32_t i = TOKENIZER_FIM_PADDING; i < TOKENIZER_N_FIM && r->ends_by_fim; i++)
        if (info->fim_ids[i] == id)
            return true;
    return false;
}

static void set_reason(struct gather *g, const struct stream_request *r,
                       const struct engine_event *event, Sluice__V1__Finished *finished)
{
    if (event->reason == FINISH_LENGTH) {
        finished->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    } else if (event->reason == FINISH_CONTEXT) {
        finished->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH;
    } else if (event->matched_stop) {
        finished->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP_STRING;
        finished->matched_case = SLUICE__V1__FINISHED__MATCHED_STOP;
        finished->stop = message_text(&g->arena, event->matched_stop);
    } else {
        finished->reason = is_end_id(g, r, event->matched_stop_id)
                               ? SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS
                               : SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP_TOKEN;
        if (event->matched_stop_id < 0)
            return;
        finished->matched_case = SLUICE__V1__FINISHED__MATCHED_STOP_TOKEN_ID;
        finished->stop_token_id = (uint32_t)event->matched_stop_id;
    }
}

static bool add_receipt(struct gather *g, const struct stream_request *r,
                        const struct engine_event *event, Sluice__V1__Finished *finished)
{
    const struct settings *s = g->worker->settings;
    const struct engine_usage *u = &event->usage;
    Sluice__V1__Usage *usage = arena_alloc(&g->arena, sizeof(*usage));
    Sluice__V1__Receipt *receipt = arena_alloc(&g->arena, sizeof(*receipt));
    if (!usage || !receipt)
        return false;
    sluice__v1__usage__init(usage);
    usage->n_prompt_tokens = u->n_prompt_tokens;
    usage->n_cached_tokens = u->n_cached_tokens;
    usage->n_generated_tokens = u->n_generated_tokens;
    usage->n_reasoning_tokens = u->n_reasoning_tokens;
    sluice__v1__receipt__init(receipt);
    receipt->model = message_text(&g->arena, s->name);
    receipt->version = message_text(&g->arena, s->version_id);
    receipt->weights_digest = message_text(&g->arena, engine_weights_digest(g->engine));
    receipt->device_group = message_text(&g->arena, s->device_group);
    receipt->replica_id = message_text(&g->arena, s->replica);
    receipt->numerics_id = message_text(&g->arena, engine_numerics_id(g->engine));
    receipt->numerics_changed = r->numerics_changed;
    receipt->seed = r->seed;
    receipt->queue_ns = (uint64_t)(u->queue_ns > 0 ? u->queue_ns : 0);
    receipt->prefill_ns = (uint64_t)(u->prefill_ns > 0 ? u->prefill_ns : 0);
    receipt->decode_ns = (uint64_t)(u->decode_ns > 0 ? u->decode_ns : 0);
    receipt->n_cached_tokens = u->n_cached_tokens;
    receipt->n_preemptions = u->n_preemptions;
    receipt->n_drafted_tokens = u->n_drafted_tokens;
    receipt->n_accepted_tokens = u->n_accepted_tokens;
    finished->usage = usage;
    finished->receipt = receipt;
    return true;
}

static bool add_finished(struct gather *g, struct stream_request *r,
                         const struct engine_event *event)
{
    const struct stream_choice *choice = &r->choices[event->choice];
    Sluice__Worker__V1__StepItem *item = add_item(g, r, event->choice);
    Sluice__V1__Finished *finished = arena_alloc(&g->arena, sizeof(*finished));
    if (!item || !finished)
        return false;
    sluice__v1__finished__init(finished);
    finished->choice = event->choice;
    finished->n_tokens = choice->n_generated;
    finished->n_reasoning_tokens = event->n_reasoning;
    set_reason(g, r, event, finished);
    if (r->want_logprobs) {
        finished->has_cumulative_logprob = true;
        finished->cumulative_logprob = (float)choice->logprob_sum;
    }
    item->finished = finished;
    return !event->last || add_receipt(g, r, event, finished);
}

/* Fills the error of a request that ended without an answer. */
static void ending_error(struct stream_request *r, const struct engine_event *event,
                         struct error *out)
{
    pthread_mutex_lock(&r->lock);
    bool draining = r->draining;
    pthread_mutex_unlock(&r->lock);
    if (r->out_of_memory) {
        error_set(out, STATUS_RESOURCE_EXHAUSTED,
                  "the worker has no memory for the next part of the answer");
        error_reason(out, REASON_WORKER_MEMORY);
    } else if (event->reason == FINISH_ERROR) {
        error_set(out, event->status, "%s", event->message);
    } else if (event->reason == FINISH_DEADLINE) {
        error_set(out, STATUS_DEADLINE_EXCEEDED, "the deadline passed after %u tokens",
                  r->choices[event->choice].n_generated);
    } else if (draining) {
        error_set(out, STATUS_UNAVAILABLE, "the worker is ending");
        error_reason(out, REASON_DRAINING);
    } else {
        error_set(out, STATUS_CANCELLED, "cancelled");
    }
}

static void add_error(struct gather *g, struct stream_request *r, const struct engine_event *event)
{
    struct error err;
    if (r->error_sent)
        return;
    r->error_sent = true;
    ending_error(r, event, &err);
    g->arena.exhausted = false;
    size_t n_items = r->session->n_items;
    Sluice__Worker__V1__StepItem *item = add_item(g, r, event->choice);
    if (item)
        item->error = message_error(&g->arena, &err);
    if (item && item->error && !g->arena.exhausted)
        return;
    r->session->n_items = n_items;
    session_send_error(r->session, r->id, event->choice, &err);
}

static void count_end(struct worker *worker, const struct stream_request *r,
                      const struct engine_event *event)
{
    enum { OK, FAILED, CANCELLED, EXPIRED };
    static const char *const names[] = {"ok", "failed", "cancelled", "expired"};
    const struct engine_usage *u = &event->usage;
    _Atomic uint64_t *totals[] = {&worker->n_ok, &worker->n_failed, &worker->n_cancelled,
                                  &worker->n_expired};
    int outcome = r->out_of_memory                    ? FAILED
                  : event->reason == FINISH_CANCELLED ? CANCELLED
                  : event->reason == FINISH_DEADLINE  ? EXPIRED
                  : r->error_sent                     ? FAILED
                                                      : OK;
    atomic_fetch_add(totals[outcome], 1);
    worker_meter_end(worker, r, u, names[outcome]);
    atomic_fetch_add(&worker->n_cached_tokens, u->n_cached_tokens);
    atomic_fetch_add(&worker->prefill_ns, (uint64_t)(u->prefill_ns > 0 ? u->prefill_ns : 0));
    atomic_fetch_add(&worker->decode_ns, (uint64_t)(u->decode_ns > 0 ? u->decode_ns : 0));
    pthread_mutex_lock(&worker->lock);
    *(r->error_sent ? &worker->n_ended : &worker->n_finished) += 1;
    pthread_mutex_unlock(&worker->lock);
}

static bool add_event(struct gather *g, struct stream_request *r, const struct engine_event *event)
{
    if (r->error_sent) /* the server saw an error: the request's other choices do not matter any
                        * more */
        return true;
    switch (event->type) {
    case ENGINE_EVENT_STARTED:
        return add_prompt_info(g, r, event);
    case ENGINE_EVENT_PROMPT:
        return add_prompt_logprobs(g, r, event);
    case ENGINE_EVENT_TOKENS:
        return add_tokens(g, r, event);
    case ENGINE_EVENT_FINISHED:
        break;
    }
    if (event->reason == FINISH_STOP || event->reason == FINISH_LENGTH ||
        event->reason == FINISH_CONTEXT)
        return add_finished(g, r, event);
    add_error(g, r, event);
    return true;
}

static void on_event(struct gather *g, const struct engine_event *event)
{
    struct stream_request *r = (struct stream_request *)(uintptr_t)event->user_data;
    size_t n_items = r->session->n_items;
    if (event->choice >= ENGINE_MAX_CHOICES)
        return;
    g->arena.exhausted = false;
    if (!r->out_of_memory && (!add_event(g, r, event) || (g->arena.exhausted && !r->error_sent))) {
        r->session->n_items = n_items;
        r->out_of_memory = true;
        engine_cancel(g->engine, event->id);
    }
    if (event->type != ENGINE_EVENT_FINISHED || !event->last)
        return;
    if (r->out_of_memory)
        add_error(g, r, event);
    count_end(g->worker, r, event);
    r->next_ended = g->ended;
    g->ended = r;
}

/* --- the thread --- */

static void send_all(struct gather *g)
{
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    worker_fill_load(g->worker, g->engine, &load);
    while (g->touched) {
        struct session *session = g->touched;
        g->touched = session->next_touched;
        session->touched = false;
        if (session->n_items)
            session_send_step(session, session->items, session->n_items, &load);
        session->n_items = 0;
        session_release(session);
    }
    while (g->ended) {
        struct stream_request *r = g->ended;
        g->ended = r->next_ended;
        session_forget(r->session, r->id);
        stream_request_release(r); /* drops the engine's reference */
        worker_request_end(g->worker);
    }
}

void *events_run(void *arg)
{
    struct gather g = {.worker = arg};
    struct engine_event_buffer *buffer = NULL;
    struct error err;
    g.engine = g.worker->engine;
    arena_init(&g.arena, ARENA_BYTES, g.worker->settings->max_frame_bytes);
    if (engine_event_buffer_create(&buffer, &err) != 0) {
        log_error(LOG_EVENT("event buffer not created"), LOG_STR("message", err.message));
        return NULL;
    }
    while (!atomic_load(&g.worker->ending)) {
        const struct engine_event *events;
        size_t n = engine_read_events(g.engine, buffer, &events);
        if (!n) {
            wake_wait(&g.worker->events, -1);
            continue;
        }
        /* After a failure the engine only reports the ends of its requests, which continue
         * elsewhere. */
        if (engine_health(g.engine, &err) != 0)
            device_end(g.worker, &err);
        for (size_t i = 0; i < n; i++)
            on_event(&g, &events[i]);
        send_all(&g);
        arena_reset(&g.arena);
    }
    engine_event_buffer_destroy(buffer);
    arena_fini(&g.arena);
    return NULL;
}
