#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/core/engine_private.h"
#include "engine/draft/draft_model.h"
#include "engine/forward/executor.h"
#include "engine/model/step.h"
#include "engine/request/request_output.h"
#include "engine/request/sequence.h"
#include "kernels/device_failpoint.h"
#include "kernels/device_fault.h"

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

/* Ends all choices that still run. */
static void end_request(struct engine *e, struct request *r, enum finish_reason reason, int status,
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

static void end_choice(struct engine *e, struct sequence *seq)
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
        end_request(e, r, FINISH_ERROR, e->failure.status, e->failure.message);
}

static void change_max_tokens(struct engine *e, struct request *r)
{
    uint32_t max_tokens = atomic_load(&r->new_max_tokens);
    /* Raising max_tokens moves arrays that readers copy from. */
    pthread_mutex_lock(&e->events_lock);
    bool ok = request_resize(r, max_tokens, &e->limits);
    pthread_mutex_unlock(&e->events_lock);
    if (!ok) {
        end_request(e, r, FINISH_ERROR, STATUS_RESOURCE_EXHAUSTED, "no memory for max_tokens");
        return;
    }
    for (uint32_t i = 0; i < r->n_choices && r->state != REQUEST_ENDED; i++) {
        struct sequence *seq = &r->choices[i];
        if (seq->state == SEQUENCE_ENDED || seq->n_ids < r->max_tokens)
            continue;
        request_output_finish_length(seq);
        end_choice(e, seq);
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
            end_choice(e, seq);
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
    if (r->state == REQUEST_ENDED)
        return;
    if (bits & CONTROL_CANCEL) {
        end_request(e, r, FINISH_CANCELLED, STATUS_CANCELLED, "cancelled");
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

/* --- a step --- */

/* Ends all requests; the engine accepts no more. */
static void fail_engine(struct engine *e, const struct error *why)
{
    struct request *r;
    e->failure = *why;
    e->failure.status = STATUS_UNAVAILABLE;
    error_prefix(&e->failure,
                 device_fault_of_error(&e->failure) ? "the device failed" : "the engine failed");
    atomic_store(&e->failed, true);
    while ((r = scheduler_any(e->scheduler)))
        end_request(e, r, FINISH_ERROR, e->failure.status, e->failure.message);
}

/* Queues the draw of the n samples in e->to_draw (ascending). Adjacent samples are drawn by one
 * call. */
static int queue_draws(struct engine *e, const struct scheduler_plan *plan, uint32_t n,
                       struct error *err)
{
    int rc = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = e->to_draw[k];
        if (plan->scored[i])
            sequence_score_params(plan->samples[i], plan->scored[i], &e->params[i]);
        else
            sequence_sample_params(plan->samples[i], &e->params[i]);
    }
    for (uint32_t k = 0, end; k < n && !rc; k = end) {
        uint32_t i = e->to_draw[k];
        for (end = k + 1; end < n && e->to_draw[end] == i + (end - k);)
            end++;
        rc = executor_queue_sample(e->executor, i, end - k, &e->params[i], &e->results[i], err);
    }
    return rc;
}

/* Queues the draw of all rows but the drafted ones. */
static int begin_draw(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    for (uint32_t i = 0; i < plan->n_samples; i++) {
        e->to_draw[i] = i;
        e->drawn[i] = false;
    }
    return queue_draws(e, plan, plan->n_samples - plan->n_drafted, err);
}

/* Collects the drawn tokens, then draws the rows behind correct drafts, round by round. Each draw
 * uses the state that its sequence has then, as if each row had been a step of its own. */
static int end_draw(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    uint32_t n = plan->n_samples - plan->n_drafted;
    int rc = 0;
    e->drawn_ns = clock_now_ns(); /* executor_step() has finished a step without samples */
    while (n && !rc) {
        uint32_t n_next = 0;
        rc = executor_wait(e->executor, err);
        e->drawn_ns = clock_now_ns();
        for (uint32_t k = 0; k < n && !rc; k++) {
            uint32_t i = e->to_draw[k], next = scheduler_take(e->scheduler, i, &e->results[i]);
            e->drawn[i] = true;
            if (next)
                e->to_draw[n_next++] = next;
        }
        n = n_next;
        if (n && !rc)
            rc = queue_draws(e, plan, n, err);
    }
    return rc;
}

static void take_deferred(struct engine *e, bool in_flight);
static void publish_news(struct engine *e, uint32_t n_new, bool wait);

/* Counts how long the device was idle before this step was queued. */
static void count_queued(struct engine *e, const struct scheduler_plan *plan)
{
    e->stats.n_ahead += e->batch->is_ahead;
    if (!e->drawn_ns || plan->n_prefill_rows || !executor_is_async(e->executor))
        return;
    e->stats.n_between++;
    e->stats.between_ns += clock_now_ns() - e->drawn_ns;
}

static int begin_step(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    int rc = e->draft_model ? draft_model_health(e->draft_model, err) : 0;
    if (!rc)
        rc = engine_moves_make(e, plan, err);
    if (!rc)
        rc = executor_step(e->executor, e->batch, err);
    count_queued(e, plan);
    if (!rc)
        rc = device_failpoint(err);
    return rc ? rc : begin_draw(e, plan, err);
}

/* Gives the executor the expected inputs of the next step. They are written into this step's batch,
 * which is no longer read. Not done if deferred text has ended a choice: then the next step
 * differs. */
static int step_ahead(struct engine *e, struct error *err)
{
    if (!e->defers || e->n_deferred_ended || !scheduler_schedule_ahead(e->scheduler, e->batch))
        return 0;
    return executor_step_ahead(e->executor, e->batch, err);
}

static int execute_step(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    int rc = begin_step(e, plan, err);
    if (e->n_deferred) { /* the device runs the step meanwhile */
        take_deferred(e, true);
        if (!e->n_deferred_ended)
            publish_news(e, 0, false);
    }
    if (!rc)
        rc = step_ahead(e, err);
    return rc ? rc : end_draw(e, plan, err);
}

static const char *sample_failure(int status)
{
    if (status == STATUS_DATA_LOSS)
        return "the model's output is not a number: no token can be drawn";
    return "every token is banned by bias or mask: no token can be drawn";
}

static void copy_logprob(struct engine_logprob *to, const struct sample_result *result)
{
    to->id = result->id;
    to->logprob = result->logprob;
    to->n_top = result->n_top;
    memcpy(to->top_ids, result->top_ids, result->n_top * sizeof(*to->top_ids));
    memcpy(to->top_logprobs, result->top_logprobs, result->n_top * sizeof(*to->top_logprobs));
}

/* Stores the log-probability of prompt token i. */
static void take_score(struct engine *e, struct sequence *seq, uint32_t i,
                       const struct sample_result *result)
{
    struct request *r = seq->request;
    if (r->state == REQUEST_ENDED)
        return; /* an earlier row of this step ended the request */
    if (result->status) {
        end_request(e, r, FINISH_ERROR, result->status, sample_failure(result->status));
        return;
    }
    copy_logprob(&r->prompt_logprobs[i], result);
    r->n_scored = i + 1;
    engine_events_mark(e, r);
}

/* Ends a choice at the tokens whose text was taken; later drafted tokens are dropped. */
static void close_choice(struct engine *e, struct sequence *seq)
{
    seq->n_ids = seq->output->n_taken;
    end_choice(e, seq);
}

static void take_text(struct engine *e, struct sequence *seq, const struct sample_result *result,
                      int64_t now_ns)
{
    if (!seq->request->first_token_ns)
        seq->request->first_token_ns = now_ns;
    if (seq->logprobs)
        copy_logprob(&seq->logprobs[seq->output->n_taken], result);
    request_output_take(seq);
    e->stats.n_generated_tokens++;
}

/* Adds the choice's next token of this step. Tokens behind the end of the choice are dropped. */
static void take_result(struct engine *e, struct sequence *seq, const struct sample_result *result,
                        int64_t now_ns)
{
    struct request *r = seq->request;
    if (r->state == REQUEST_ENDED || seq->output->reason != FINISH_NONE)
        return;
    if (result->status)
        request_output_end(seq, FINISH_ERROR, result->status, sample_failure(result->status));
    else
        take_text(e, seq, result, now_ns);
    engine_events_mark(e, r);
    if (seq->output->reason != FINISH_NONE)
        close_choice(e, seq);
}

/* Decodes the text of the deferred tokens. If a step is in flight, choices that end now stay in the
 * scheduler until the step is over. Tokens that the step draws for them are dropped. */
static void take_deferred(struct engine *e, bool in_flight)
{
    uint32_t n = e->n_deferred;
    e->n_deferred = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sequence *seq = e->deferred[i];
        struct request *r = seq->request;
        const struct sample_result *result = &e->last_results[e->deferred_result[i]];
        if (!in_flight || r->state == REQUEST_ENDED || seq->output->reason != FINISH_NONE) {
            take_result(e, seq, result, e->deferred_ns); /* does nothing if the choice has ended */
            request_release(r);
            continue;
        }
        take_text(e, seq, result, e->deferred_ns);
        if (seq->output->reason == FINISH_NONE) {
            engine_events_mark(e, r);
            request_release(r);
        } else { /* end_deferred() releases the reference */
            e->deferred_ended[e->n_deferred_ended++] = seq;
        }
    }
}

/* Ends the choices that deferred text has ended. No step is in flight. */
static void end_deferred(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_deferred_ended; i++) {
        struct sequence *seq = e->deferred_ended[i];
        struct request *r = seq->request;
        engine_events_mark(e, r);
        if (r->state != REQUEST_ENDED)
            close_choice(e, seq);
        request_release(r);
    }
    e->n_deferred_ended = 0;
}

/* Defers the text of sample i if it can be decoded later. Returns false if it must be decoded
 * now. */
static bool defer_text(struct engine *e, const struct scheduler_plan *plan, uint32_t i)
{
    struct sequence *seq = plan->samples[i];
    if (!e->defers || plan->n_drafted || plan->scored[i] || !e->drawn[i] || e->results[i].status ||
        seq->request->state == REQUEST_ENDED || seq->output->reason != FINISH_NONE ||
        request_output_may_end(seq))
        return false;
    request_retain(seq->request);
    e->deferred[e->n_deferred] = seq;
    e->deferred_result[e->n_deferred++] = i;
    return true;
}

/* Counts a drafted row; accepted if it gave a token. */
static void count_draft(struct engine *e, const struct scheduler_plan *plan, uint32_t i)
{
    const struct sequence *seq = plan->samples[i];
    struct request *r = seq->request;
    bool accepted = e->drawn[i] && !e->results[i].status && r->state != REQUEST_ENDED &&
                    seq->output->reason == FINISH_NONE;
    r->n_drafted_tokens++;
    r->n_accepted_tokens += accepted;
    e->stats.n_drafted_tokens++;
    e->stats.n_accepted_tokens += accepted;
}

/* Rows by role: [0] prompt, [1] generated. */
struct step_rows {
    uint32_t n[2];
};

static struct step_rows rows_by_role(const struct step_batch *batch)
{
    struct step_rows rows = {{0, 0}};
    for (uint32_t r = 0; r < batch->n_rows; r++)
        rows.n[batch->is_generated[r] != 0]++;
    return rows;
}

static void count_paths(struct engine *e, struct step_rows rows)
{
    struct engine_stats *s = &e->stats;
    bool mixed = rows.n[0] && rows.n[1];
    uint32_t by_d = mixed && executor_mixes_roles(e->executor) ? 0 : rows.n[1];
    s->n_mixed_steps += mixed;
    s->n_path_d_rows += by_d;
    s->n_path_p_rows += rows.n[0] + rows.n[1] - by_d;
}

static void count_step(struct engine *e, const struct scheduler_plan *plan, int64_t ns)
{
    struct engine_stats *s = &e->stats;
    uint32_t n_rows = plan->n_decode_rows + plan->n_drafted + plan->n_prefill_rows;
    s->n_steps++;
    s->n_decode_steps += plan->n_decode_rows > 0;
    s->n_decode_rows += plan->n_decode_rows;
    s->n_decode_active += plan->n_decode_rows ? plan->n_decode_ready : 0;
    s->n_prefill_rows += plan->n_prefill_rows;
    s->last_step_ns = ns;
    s->draft_ns += plan->draft_ns;
    *(plan->n_prefill_rows ? &s->prefill_ns : &s->decode_ns) += ns;
    admission_saw_step(&e->admission, n_rows, plan->n_prefill_rows, ns);
    if (!plan->n_prefill_rows) {
        step_cost_saw(&e->step_cost, n_rows, ns - plan->draft_ns);
        scheduler_set_row_cost(e->scheduler, step_cost_base_rows(&e->step_cost));
    }
}

static void take_sample(struct engine *e, const struct scheduler_plan *plan, uint32_t i,
                        int64_t now_ns)
{
    if (i >= plan->n_samples - plan->n_drafted)
        count_draft(e, plan, i);
    if (plan->scored[i])
        take_score(e, plan->samples[i], plan->scored[i], &e->results[i]);
    else if (e->drawn[i])
        take_result(e, plan->samples[i], &e->results[i], now_ns);
}

/* Deferred texts still need this step's results, so the two result arrays are swapped. */
static void take_samples(struct engine *e, const struct scheduler_plan *plan, int64_t now_ns)
{
    struct sample_result *results = e->results;
    e->deferred_ns = now_ns;
    for (uint32_t i = 0; i < plan->n_samples; i++)
        if (!defer_text(e, plan, i))
            take_sample(e, plan, i, now_ns);
    e->results = e->last_results;
    e->last_results = results;
}

/* Returns false if nothing could run. */
static bool run_step(struct engine *e)
{
    struct scheduler_plan plan;
    struct error err;
    int64_t begin = clock_now_ns();
    if (!scheduler_schedule(e->scheduler, e->batch, begin, &plan)) {
        bool had = e->n_deferred > 0;
        take_deferred(e, false);
        return had;
    }
    for (uint32_t i = 0; i < plan.n_started; i++)
        engine_events_mark(e, plan.started[i]);
    /* Readers learn of a start before the step runs: the process may die in the step. */
    if (plan.n_started && !e->n_deferred)
        publish_news(e, 0, true);
    for (uint32_t i = 0; i < plan.n_begun; i++) {
        const struct request *r = plan.begun[i]->request;
        /* a resume finds the blocks of its own earlier run */
        if (!r->n_preemptions && !plan.begun[i]->n_replayed)
            admission_saw_start(&e->admission, r->caller_hash, r->n_cached_tokens);
    }
    struct step_rows rows = rows_by_role(e->batch);
    int rc = execute_step(e, &plan, &err);
    scheduler_commit(e->scheduler);
    end_deferred(e);
    if (rc) {
        fail_engine(e, &err);
        return true;
    }
    int64_t end = clock_now_ns();
    take_samples(e, &plan, end);
    scheduler_saw_step(e->scheduler, end - begin - plan.draft_ns);
    count_step(e, &plan, end - begin);
    count_paths(e, rows);
    return true;
}

static void end_expired(struct engine *e)
{
    struct request *r;
    while ((r = scheduler_expired(e->scheduler, clock_now_ns()))) {
        end_request(e, r, FINISH_DEADLINE, STATUS_DEADLINE_EXCEEDED, "the deadline passed");
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
    take_deferred(e, false);
    drain_inbox(e);
    while ((r = scheduler_any(e->scheduler)))
        end_request(e, r, FINISH_CANCELLED, STATUS_CANCELLED, "the engine closes");
    engine_events_publish(e, true);
}

/* Publishes statistics, then events: a client that reads an end may submit at once and needs the
 * freed slot. `n_new`: requests taken from the inbox since the last statistics. */
static void publish_news(struct engine *e, uint32_t n_new, bool wait)
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
            take_deferred(e, false);
        uint32_t n_new = 0;
        if (!e->n_deferred) {
            n_new = drain_inbox(e);
            end_expired(e);
        }
        if (!e->n_deferred &&
            (n_new || e->dirty)) /* publish ends by cancel or deadline before the step */
            publish_news(e, n_new, false);
        bool ran = run_step(e);
        if (!e->n_deferred) /* else execute_step() publishes with the deferred text */
            publish_news(e, 0, !ran);
        if (!ran) {
            wait_for_work(e);
            e->drawn_ns = 0;
        }
    }
    abandon_all(e);
    return NULL;
}
