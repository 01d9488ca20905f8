#include "base/clock.h"
#include "engine/core/engine_private.h"
#include "engine/forward/executor.h"
#include "engine/request/request_output.h"
#include "engine/request/sequence.h"

/* --- the end of requests --- */

/* Counts the end of a request that the scheduler has released, and marks it for publication. */
static void request_ended(struct engine *e, struct request *r, enum finish_reason reason)
{
    r->ended_ns = clock_now_ns();
    if (r->active_ns)
        admission_saw_end(&e->admission, r->ended_ns - r->active_ns);
    *(reason == FINISH_CANCELLED  ? &e->stats.n_cancelled
      : reason == FINISH_DEADLINE ? &e->stats.n_expired
                                  : &e->stats.n_finished) += 1;
    engine_events_mark(e, r);
}

void engine_end_request(struct engine *e, struct request *r, enum finish_reason reason, int status,
                        const char *message)
{
    if (r->state == REQUEST_ENDED)
        return;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        struct sequence *seq = &r->choices[i];
        request_output_end(seq, reason, status, message);
        if (seq->state !=
            SEQUENCE_ENDED) /* drop ids of a failed step that the output has not taken */
            seq->n_ids = seq->output->n_taken;
    }
    scheduler_end_request(e->scheduler, r);
    request_ended(e, r, reason);
}

void engine_end_choice(struct engine *e, struct sequence *seq)
{
    struct request *r = seq->request;
    scheduler_end_sequence(e->scheduler, seq);
    if (r->state == REQUEST_ENDED)
        request_ended(e, r, seq->output->reason);
}

/* --- the inbox --- */

static void take_submitted(struct engine *e, struct request *r)
{
    bool live = false;
    request_retain(r); /* the engine thread's reference, until the end is published */
    for (uint32_t i = 0; i < r->n_choices; i++)
        live |= r->choices[i].state != SEQUENCE_ENDED;
    if (!live) { /* a resume of a request that had ended already */
        r->state = REQUEST_ENDED;
        request_ended(e, r, FINISH_STOP);
        return;
    }
    scheduler_add(e->scheduler, r);
    if (atomic_load(&e->failed))
        engine_end_request(e, r, FINISH_ERROR, e->failure.status, e->failure.message);
}

static void change_max_tokens(struct engine *e, struct request *r)
{
    uint32_t max_tokens = atomic_load(&r->new_max_tokens);
    /* Raising max_tokens moves arrays that readers copy from. */
    pthread_mutex_lock(&e->events_lock);
    bool ok = request_resize(r, max_tokens, &e->limits);
    pthread_mutex_unlock(&e->events_lock);
    if (!ok) {
        engine_end_request(e, r, FINISH_ERROR, STATUS_RESOURCE_EXHAUSTED,
                           "no memory for max_tokens");
        return;
    }
    for (uint32_t i = 0; i < r->n_choices && r->state != REQUEST_ENDED; i++) {
        struct sequence *seq = &r->choices[i];
        if (seq->state == SEQUENCE_ENDED || seq->n_ids < r->max_tokens)
            continue;
        request_output_finish_length(seq);
        engine_end_choice(e, seq);
    }
    engine_events_mark(e, r);
}

static void change_stops(struct engine *e, struct request *r)
{
    struct request_stop_change *change = atomic_exchange(&r->new_stops, NULL);
    if (!change)
        return; /* an earlier message brought it */
    for (uint32_t i = 0; i < r->n_choices && r->state != REQUEST_ENDED; i++) {
        struct sequence *seq = &r->choices[i];
        if (seq->state == SEQUENCE_ENDED)
            continue;
        request_output_change_stops(seq, change->set, &change->matchers[i]);
        if (seq->output->reason != FINISH_NONE)
            engine_end_choice(e, seq);
    }
    struct stop_set *old = r->stop_set; /* unused from here on: matched strings were copied */
    r->stop_set = change->set;
    change->set = old;
    request_stop_change_destroy(change);
    engine_events_mark(e, r);
}

/* Applies the control bits of a request from the inbox. */
static void take_message(struct engine *e, struct request *r)
{
    unsigned bits = atomic_exchange(&r->control, 0);
    if (bits & CONTROL_SUBMIT) {
        r->paused = atomic_load(&r->want_paused);
        take_submitted(e, r);
    }
    if (scheduler_is_in_flight(r) && (bits & (CONTROL_CANCEL | CONTROL_STOPS | CONTROL_MAX_TOKENS)))
        engine_step_settle(e); /* these may end choices */
    if (r->state == REQUEST_ENDED)
        return;
    if (bits & CONTROL_CANCEL) {
        engine_end_request(e, r, FINISH_CANCELLED, STATUS_CANCELLED, "cancelled");
        return;
    }
    if (bits & CONTROL_PRIORITY)
        scheduler_set_priority(e->scheduler, r, atomic_load(&r->new_priority));
    if (bits & CONTROL_PAUSE)
        scheduler_pause(e->scheduler, r, atomic_load(&r->want_paused));
    if (bits & CONTROL_STOPS)
        change_stops(e, r);
    if ((bits & CONTROL_MAX_TOKENS) && r->state != REQUEST_ENDED)
        change_max_tokens(e, r);
}

/* Handles all requests in the inbox, oldest first. Returns how many were submitted. */
static uint32_t drain_inbox(struct engine *e)
{
    struct request *newest = atomic_exchange(&e->inbox, NULL), *oldest = NULL;
    uint32_t n_submitted = 0;
    while (newest) {
        struct request *next = atomic_load_explicit(&newest->inbox_next, memory_order_relaxed);
        atomic_store_explicit(&newest->inbox_next, oldest, memory_order_relaxed);
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct request *next = atomic_load_explicit(&oldest->inbox_next, memory_order_relaxed);
        n_submitted += (atomic_load(&oldest->control) & CONTROL_SUBMIT) != 0;
        take_message(e, oldest);
        request_release(oldest);
        oldest = next;
    }
    return n_submitted;
}

static void end_expired(struct engine *e)
{
    struct request *r;
    while ((r = scheduler_expired(e->scheduler, clock_now_ns()))) {
        if (scheduler_is_in_flight(r)) {
            engine_step_settle(e); /* the request may end with a token */
            continue;
        }
        engine_end_request(e, r, FINISH_DEADLINE, STATUS_DEADLINE_EXCEEDED, "the deadline passed");
    }
}

/* --- the loop --- */

/* Sleeps until something is posted or a deadline passes. */
static void wait_for_work(struct engine *e)
{
    int64_t until = scheduler_next_deadline(e->scheduler);
    struct timespec ts = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};
    int rc = 0;
    pthread_mutex_lock(&e->sleep_lock);
    atomic_store(&e->sleeping, true);
    while (!atomic_load(&e->inbox) && !atomic_load(&e->closing) && !rc)
        rc = until == INT64_MAX ? pthread_cond_wait(&e->wake, &e->sleep_lock)
                                : pthread_cond_timedwait(&e->wake, &e->sleep_lock, &ts);
    atomic_store(&e->sleeping, false);
    pthread_mutex_unlock(&e->sleep_lock);
}

/* Ends everything that still runs. engine_close() drops the registry's references. */
static void abandon_all(struct engine *e)
{
    struct request *r;
    engine_step_settle(e);
    engine_step_deferred(e, false);
    drain_inbox(e);
    while ((r = scheduler_any(e->scheduler)))
        engine_end_request(e, r, FINISH_CANCELLED, STATUS_CANCELLED, "the engine closes");
    engine_events_publish(e, true);
}

void engine_publish_news(struct engine *e, uint32_t n_new, bool wait)
{
    engine_stats_refresh(e, n_new);
    if (engine_events_publish(e, wait) && e->cfg.notify)
        e->cfg.notify(e->cfg.notify_ctx);
}

void *engine_loop_run(void *arg)
{
    struct engine *e = arg;
    struct error why;
    pthread_setname_np(pthread_self(), "sluice-engine");
    executor_enter(e->executor, &why); /* if the CPU is gone, the thread runs on any */
    while (!atomic_load(&e->closing)) {
        /* Commands refer to the tokens so far. So while text is deferred, the inbox is not read and
         * no deadline ends a request. */
        if (e->n_deferred &&
            (atomic_load(&e->inbox) || scheduler_next_deadline(e->scheduler) <= clock_now_ns()))
            engine_step_deferred(e, false);
        uint32_t n_new = 0;
        if (!e->n_deferred) {
            n_new = drain_inbox(e);
            end_expired(e);
        }
        if (!e->n_deferred &&
            (n_new || e->dirty)) /* publish ends by cancel or deadline before the step */
            engine_publish_news(e, n_new, false);
        bool ran = engine_step_run(e);
        if (!e->n_deferred) /* else the next step publishes with the deferred text */
            engine_publish_news(e, 0, !ran);
        if (!ran) {
            wait_for_work(e);
            e->drawn_ns = 0;
        }
    }
    abandon_all(e);
    return NULL;
}
